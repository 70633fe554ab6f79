from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.axes import AXES
from e3rl.analysis.measures.costs import (
    common_cost,
    cost_before,
    known_cost,
    total_cost,
)
from e3rl.analysis.sources.runs import Run


@pytest.fixture
def train() -> pd.DataFrame:
    return pd.DataFrame({"rollout_step": [0, 1, 2], "cost/tokens": [10.0, 25.0, 31.0]})


def test_a_row_has_cost_what_the_steps_before_it_did(train: pd.DataFrame) -> None:
    assert cost_before(train, [0, 1, 2, 3], "tokens").tolist() == [0, 10, 25, 31]
    assert cost_before(train, [2, 0], "steps").tolist() == [2, 0]
    assert total_cost(train, "tokens") == 31
    assert total_cost(train, "steps") == 3


def test_costs_that_were_not_recorded_are_nan(train: pd.DataFrame) -> None:
    assert np.isnan(cost_before(train, [0, 1], "seconds")).all()
    late = train[train["rollout_step"] > 0]  # a run that goes on in a new folder
    assert np.isnan(cost_before(late, [1, 2], "tokens")).tolist() == [True, False]
    assert np.isnan(total_cost(train.head(0), "tokens"))


def test_an_axis_that_does_not_exist_is_named(train: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="axis='dollars' is none of steps, rollouts"):
        cost_before(train, [0], "dollars")


def test_accuracies_are_known_up_to_the_last_validation_only(run: Run) -> None:
    """Validated every 8 of 24 steps."""
    assert common_cost([run], "tokens") == total_cost(run.train, "tokens")
    early = replace(run, problems=run.problems[run.problems["rollout_step"] < 24])
    assert common_cost([run, early], "steps") == 16
    assert common_cost([run, early], "tokens") == cost_before(run.train, [16], "tokens")[0]
    untrained = replace(run, problems=run.problems[run.problems["rollout_step"] == 0])
    assert known_cost(untrained, "tokens") == 0


def test_a_run_without_counts_of_a_validation_does_not_cut_the_cost_of_others(run: Run) -> None:
    """Neither one that was never validated nor one of W&B whose counts are not there."""
    begun = replace(run, train=run.train[run.train["rollout_step"] < 3])
    uncounted = replace(begun, problems=run.problems.head(0))
    never = replace(uncounted, evaluations=run.evaluations.head(0))
    assert [known_cost(each, "steps") for each in (uncounted, never)] == [0, 0]
    assert common_cost([uncounted, run, never], "steps") == 24
    assert common_cost([uncounted, never], "steps") == 0


def test_a_run_without_a_cost_or_a_step_is_named(run: Run) -> None:
    unknown = replace(run, path=Path("old"), train=run.train.drop(columns="cost/seconds"))
    with pytest.raises(ValueError, match="old has not recorded cost/seconds to its end; compare"):
        common_cost([run, unknown], "seconds")
    killed = replace(run, path=Path("new"), train=run.train.head(0))
    with pytest.raises(ValueError, match="new has no training step yet: leave it out"):
        common_cost([run, killed], "tokens")
    with pytest.raises(ValueError, match="no run to compare"):
        common_cost([], "tokens")


def test_a_recorded_run_has_every_axis(run: Run) -> None:
    for axis in AXES:
        spent = cost_before(run.train, run.train["rollout_step"], axis)
        assert spent[0] == 0
        assert (np.diff(spent) > 0).all()

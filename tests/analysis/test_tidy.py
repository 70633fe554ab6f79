import numpy as np
import pytest

from e3rl.analysis.measures.axes import AXES
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.tidy import tidy_table


def test_every_row_of_every_run_is_there_once_with_arm_seed_and_cost(
    arms: dict[str, list[Run]],
) -> None:
    runs = [run for group in arms.values() for run in group]
    table = tidy_table(runs)
    assert len(table) == sum(len(run.train) + len(run.validation) for run in runs)
    assert not table.duplicated(["arm", "seed", "kind", "steps"]).any()
    assert list(table.columns[:9]) == ["arm", "seed", "run", "kind", "epoch", *AXES]
    mine = table.query("arm == 'e3' and seed == 2 and kind == 'train'")
    (run,) = [run for run in arms["e3"] if run.seed == 2]
    assert mine["policy/entropy"].tolist() == run.train["policy/entropy"].tolist()
    assert mine["tokens"].tolist()[1:] == run.train["cost/tokens"].tolist()[:-1]
    assert set(mine["run"]) == {str(run.path)}


def test_validation_stands_at_the_cost_of_the_training_before_it(run: Run) -> None:
    table = tidy_table([run])
    last = table[table["kind"] == "validation"].iloc[-1]
    assert last["steps"] == 24
    assert last["tokens"] == run.train["cost/tokens"].iloc[-1]
    assert np.isnan(last["policy/entropy"])


def test_no_run_is_no_table() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        tidy_table([])

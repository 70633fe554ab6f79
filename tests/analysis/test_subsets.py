"""Arms on the problems that the untrained policy solves often, or seldom."""

import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.measures.subsets import (
    compare_on_problems,
    keep_problems,
    start_counts,
    start_pass_rates,
)
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.comparison_table import comparison_note

Arms = dict[str, list[Run]]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    recorded = runpy.run_path(str(Path(__file__).with_name("recorded_runs.py")))
    folder = tmp_path_factory.mktemp("study")
    recorded["write_study"](folder, ["grpo", "e3"], seeds=(1, 2, 3))
    return group_by_arm(load_runs(folder))


def test_rates_before_training_are_those_of_all_draws_that_differ(arms: Arms) -> None:
    """An arm that is there twice counts once; seeds, and arms that drew others, add up."""
    right: dict[str, list[int]] = {}
    tried: dict[str, int] = {}
    for run in arms["grpo"]:
        for row in run.problems.to_dict("records"):
            if row["rollout_step"] == 0 and row["name"] == "t1":
                right.setdefault(row["problem_id"], []).append(row["correct"])
                tried[row["problem_id"]] = tried.get(row["problem_id"], 0) + row["n"]
    twice = {"grpo": arms["grpo"], "again": arms["grpo"]}
    assert start_pass_rates(twice).to_dict() == {p: sum(right[p]) / tried[p] for p in right}
    assert start_counts(twice)["n"].to_dict() == tried
    assert len(tried) == 30
    both = start_counts(arms)["n"]
    assert (both == 2 * start_counts(twice)["n"]).all()  # arms of other draws count for themselves


def test_a_draw_that_runs_of_other_seeds_share_counts_once(arms: Arms) -> None:
    (run, *_), size = arms["grpo"], start_counts({"grpo": arms["grpo"][:1]})["n"]
    shared = [replace(run, seed=seed) for seed in (1, 2, 3)]
    assert (start_counts({"grpo": shared})["n"] == size).all()


def test_subsets_share_the_problems_out(arms: Arms) -> None:
    rates = start_pass_rates(arms)
    middle = float(np.median(rates))
    hard, easy = keep_problems(arms, [0, middle]), keep_problems(arms, [middle + 1e-9, 1])
    for arm, runs in arms.items():
        for run, low, high in zip(runs, hard[arm], easy[arm], strict=True):
            parts = pd.concat([low.problems, high.problems]).sort_index()
            pd.testing.assert_frame_equal(parts, run.problems)
            assert set(low.problems["problem_id"]) == set(rates.index[rates <= middle])


def test_what_is_compared_is_the_last_validation_of_those_problems(arms: Arms) -> None:
    rates = start_pass_rates(arms)
    limit = float(rates.quantile(0.3))
    kept = set(rates.index[rates <= limit])
    rows = compare_on_problems(arms, "grpo", [0, limit])
    (row,) = [
        r for r in rows if (r["arm"], r["evaluation"], r["measure"]) == ("e3", "t1", "pass@1")
    ]
    shares = [
        (table["correct"] / table["n"]).mean()
        for run in arms["e3"]
        for table in [
            run.problems[
                (run.problems["rollout_step"] == 24)
                & (run.problems["name"] == "t1")
                & run.problems["problem_id"].isin(kept)
            ]
        ]
    ]
    assert row["problems"] == len(kept)
    assert row["by_seed"] == pytest.approx(shares)
    assert f"solved by the untrained policy in 0 to {100 * limit:g} % of" in comparison_note(rows)


def test_they_are_comparisons_of_their_own_and_in_no_declared_family(arms: Arms) -> None:
    whole = compare_arms(arms, "grpo", ks=[1])
    some = compare_on_problems(arms, "grpo", [0, 1], ks=[1])
    declared = {"primary": [row for row in whole if row["comparison"]]}
    judged = judge_rows([*whole, *some], declared)
    families = {row["comparison"]: row["family"] for row in judged if row["comparison"]}
    assert len(families) == 2 * len(declared["primary"])
    assert {row["family"] for row in judged[len(whole) :]} == {None, "exploratory"}
    assert [row["difference"] for row in some] == [row["difference"] for row in whole]


def test_a_range_without_problems_is_refused(arms: Arms) -> None:
    with pytest.raises(ValueError, match=r"untrained=\[2, 3\]: no problem has such a pass rate"):
        keep_problems(arms, [2, 3])
    late = {
        arm: [replace(run, problems=run.problems[run.problems["rollout_step"] > 0]) for run in runs]
        for arm, runs in arms.items()
    }
    with pytest.raises(ValueError, match="no run has an evaluation t1 before its first step"):
        keep_problems(late, [0, 1])

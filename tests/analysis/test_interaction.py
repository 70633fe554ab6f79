"""Two changes together against the sum of each: worked by hand, from runs, and simulated."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.families import BETTER, NEITHER, judge_rows
from e3rl.analysis.measures.interaction import interaction_between, interaction_rows
from e3rl.analysis.measures.scores import Scores, scores_at
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.study_cells import interaction_cells

Arms = dict[str, list[Run]]
CELLS = ("e3", "budget", "ts_an", "grpo")


def cell(arm: str, values: np.ndarray) -> Scores:
    columns = [f"p{i}" for i in range(values.shape[1])]
    table = pd.DataFrame(values, index=range(1, len(values) + 1), columns=columns)
    return Scores(arm, "t1", "pass@1", 1.0, 0.5, table, {})


def four(*values: np.ndarray) -> list[Scores]:
    return [cell(arm, each) for arm, each in zip(CELLS, values, strict=True)]


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Arms:
    recorded = runpy.run_path(str(Path(__file__).with_name("recorded_runs.py")))
    folder = tmp_path_factory.mktemp("study")
    recorded["write_study"](folder, list(CELLS), seeds=(1, 2, 3))
    return group_by_arm(load_runs(folder))


def test_worked_by_hand() -> None:
    """Two seeds, three problems. Alone +.1 and -.2, together +.3: .4 beyond the sum of -.1.

    The interaction is .4 .2 .6 with one seed and .5 .2 .5 with the other, by seed .4 and .4, by
    problem .45 .2 .55. Mean squares: of seeds 0, of problems 2 (.05² + .2² + .15²) / 2 = .065, of
    the rest 4 · .05² / 2 = .005. The standard error is √((0 + .065 - .005) / 6) = .1.
    """
    neither = np.array([[0.4, 0.5, 0.2], [0.3, 0.6, 0.5]])
    both = neither + np.array([[0.3, 0.1, 0.5], [0.4, 0.1, 0.4]])
    row = interaction_between(four(both, neither + 0.1, neither - 0.2, neither))
    assert (row["first"], row["second"], row["neither"]) == CELLS[1:]
    assert row["together"] == pytest.approx(0.3)
    assert row["parts"] == pytest.approx(-0.1)
    assert row["difference"] == pytest.approx(0.4)
    assert row["difference_error"] == pytest.approx(0.1)


def test_bounds_reach_as_far_as_two_differences_can() -> None:
    """Two seeds: 1 - 0 - 0 + 1 = 2, and 1 - 1 - 1 + 1 = 0, which know nothing of others."""
    one, none = np.ones(8), np.zeros(8)
    mixed = np.array([none, one])
    row = interaction_between(four(np.array([one, one]), mixed, mixed, np.array([one, one])))
    assert (row["difference"], row["difference_low"], row["difference_high"]) == (1, -2, 2)


def test_changes_that_add_up_have_none() -> None:
    rng = np.random.default_rng(0)
    neither = rng.uniform(0.3, 0.5, (4, 50))
    one, other = rng.normal(0.1, 0.05, (2, 4, 50))
    row = interaction_between(four(neither + one + other, neither + one, neither + other, neither))
    assert row["difference"] == pytest.approx(0, abs=1e-12)
    assert row["together"] == pytest.approx(row["parts"]) == pytest.approx((one + other).mean())


def test_from_runs_at_the_cost_that_all_of_them_reached(arms: Arms) -> None:
    (row,) = judge_rows(interaction_rows(arms, [CELLS]))
    cost = common_cost([run for runs in arms.values() for run in runs], "tokens")
    assert row["cost"] == cost
    tables = {}
    for arm in CELLS:
        found = scores_at(arms[arm], "t1", 1, "tokens", cost)
        assert found is not None
        tables[arm] = found.table
    values = tables["e3"] - tables["budget"] - tables["ts_an"] + tables["grpo"]
    assert row["difference"] == pytest.approx(values.to_numpy().mean())
    assert (row["seeds"], row["problems"]) == values.shape == (3, 30)
    assert (row["family"], row["family_size"]) == ("exploratory", 1)
    assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_where_not_every_validation_has_k_rollouts_the_last_one_is_taken(arms: Arms) -> None:
    early = {
        arm: [
            replace(run, problems=run.problems.assign(n=n, correct=correct))
            for run in runs
            for last in [run.problems["rollout_step"] == 24]
            for n in [np.where(last, run.problems["n"], 1)]
            for correct in [np.where(last, run.problems["correct"], run.problems["correct"] > 8)]
        ]
        for arm, runs in arms.items()
    }
    rows = interaction_rows(early, [CELLS], ks=[1, 4])
    assert [row["measure"] for row in rows] == ["pass@1", "pass@4"]
    assert rows[0]["spent"] is None
    ends = [np.mean([run.train["cost/tokens"].iloc[-1] for run in arms[arm]]) for arm in CELLS]
    assert rows[1]["spent"] == pytest.approx(ends)
    note = interaction_cells(judge_rows(rows)).note
    assert "but for pass@4: after each run's last step" in note
    assert "2 comparisons" in note
    ends = judge_rows(interaction_rows(early, [CELLS], cost=math.inf))
    assert "inf" not in interaction_cells(ends).note
    assert interaction_cells(ends).note.startswith("Points, after each run's last step")


def test_words_of_the_verdict() -> None:
    rng = np.random.default_rng(1)
    neither = rng.uniform(0.3, 0.5, (5, 60))
    noise = rng.normal(0, 0.02, (5, 60))
    rows = [
        interaction_between(four(neither + each + noise, neither, neither, neither)) | {"arm": name}
        for name, each in (("more", 0.1), ("less", -0.1), ("open", 0.0))
    ]
    for row, name in zip(rows, ("more", "less", "open"), strict=True):
        row["comparison"] = name
    cells = interaction_cells(judge_rows(rows))
    words = [line[cells.header.index("verdict")] for line in cells.body]
    assert words == ["more than the sum", "less than the sum", NEITHER]
    assert judge_rows(rows)[0]["verdict"] == BETTER


def test_few_seeds_are_remarked_and_rows_of_other_sizes_say_so() -> None:
    neither = np.random.default_rng(3).uniform(0.3, 0.5, (6, 40))
    few, more = neither[:3, :20], neither
    rows = [interaction_between(four(x + 0.1, x, x, x)) for x in (few, more)]
    rows = [row | {"comparison": str(n)} for n, row in enumerate(rows)]
    cells = interaction_cells(judge_rows(rows))
    places = [cells.header.index(name) for name in ("verdict", "seeds", "problems")]
    assert [[line[place] for place in places] for line in cells.body] == [
        ["more than the sum (3 seeds)", "3", "20"],
        ["more than the sum", "6", "40"],
    ]
    assert "if the row's standard error is the true one" in cells.note
    assert "p is below 0.05" in cells.note


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (("e3", "budget", "grpo"), "name four arms, both, first, second, neither"),
        (("e3", "budget", "budget", "grpo"), "name four arms"),
        (("e3", "budget", "hot", "grpo"), "no recorded arm 'hot'; there are e3, budget"),
    ],
)
def test_what_is_no_factorial_is_refused(arms: Arms, cells: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interaction_rows({arm: arms[arm] for arm in CELLS}, [cells])


def test_an_evaluation_that_an_arm_lacks_is_named(arms: Arms) -> None:
    with pytest.raises(ValueError, match="lacks pass@1 of t2"):
        interaction_rows(arms, [CELLS], evaluations=["t2"])


def test_arms_of_other_seeds_are_refused(arms: Arms) -> None:
    fewer = {**arms, "budget": arms["budget"][:2]}
    with pytest.raises(ValueError, match=r"the same seeds: e3 1, 2, 3; budget 1, 2;"):
        interaction_rows(fewer, [CELLS])


def test_how_many_intervals_hold_the_truth() -> None:
    """Of 300 studies of five seeds and 64 problems, with luck of seeds that arms share and that of
    each arm, problems that answer to the arms in their own way, and 8 rollouts."""
    rng, held = np.random.default_rng(2), 0
    levels = np.array([0.2, 0.1, 0.15, 0.3])[:, None, None]  # (.2 - .1) - (.15 - .3) = .25
    for _ in range(300):
        luck = rng.normal(0, 0.03, (4, 5, 1)) + rng.normal(0, 0.03, (1, 5, 1))
        own = rng.normal(0, 0.02, (4, 1, 64))
        rates = rng.uniform(0.2, 0.5, 64) + levels + luck + own
        row = interaction_between(four(*rng.binomial(8, rates.clip(0, 1)) / 8))
        held += row["difference_low"] <= 0.25 <= row["difference_high"]
    assert 0.92 <= held / 300 <= 0.98

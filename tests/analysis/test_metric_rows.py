"""Means of a metric over stretches of steps, and differences to a control."""

from pathlib import Path

import pandas as pd
import pytest

from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.measures.metric_rows import metric_rows
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.study_cells import metric_cells


def run_of(arm: str, seed: int, values: list[float]) -> Run:
    train = pd.DataFrame({"rollout_step": range(len(values)), "rollout/all_wrong": values})
    empty = pd.DataFrame()
    return Run(Path("x"), arm, seed, {}, train, empty, empty, empty, empty, None)


ARMS = {
    "grpo": [run_of("grpo", 1, [0.5, 0.3, 0.2, 0.2]), run_of("grpo", 2, [0.5, 0.5, 0.2, 0.4])],
    "budget": [
        run_of("budget", 1, [0.5, 0.3, 0.1, 0.1]),
        run_of("budget", 2, [0.5, 0.5, 0.1, 0.3]),
    ],
    "other": [
        Run(
            Path("x"),
            "other",
            1,
            {},
            pd.DataFrame({"rollout_step": [0]}),
            *[pd.DataFrame()] * 4,
            None,
        )
    ],
}
COLUMN = "rollout/all_wrong"


def test_windows_are_steps_and_negative_ones_count_from_the_end() -> None:
    rows = metric_rows(ARMS, None, COLUMN, {"start": (0, 2), "end": (-2, 0)})
    found = {(row["arm"], row["window"]): row["value"] for row in rows}
    assert found["grpo", "start"] == pytest.approx(0.45)
    assert found["grpo", "end"] == pytest.approx(0.25)
    assert found["budget", "end"] == pytest.approx(0.15)
    assert not any(arm == "other" for arm, _ in found)


def test_intervals_are_students_over_seeds() -> None:
    # Means of the last two steps are .2 and .3: .25 ± 12.706 · .05.
    rows = metric_rows(ARMS, None, COLUMN, {"end": (-2, 0)})
    first = rows[0]
    assert (first["value_low"], first["value_high"]) == pytest.approx((-0.3853, 0.8853), abs=1e-4)
    one = metric_rows({"grpo": ARMS["grpo"][:1]}, None, COLUMN, {"end": (-2, 0)})[0]
    assert (one["value"], one["value_low"]) == (pytest.approx(0.2), None)


def test_a_control_of_two_seeds_leaves_one_degree_of_freedom() -> None:
    """Five seeds of .1 to .5 less two of .2: Welch counts four degrees, two seeds know one."""
    arms = {
        "grpo": [run_of("grpo", seed, [0.2, 0.2]) for seed in (8, 9)],
        "mine": [run_of("mine", seed, [seed / 10] * 2) for seed in range(1, 6)],
    }
    (row,) = [r for r in metric_rows(arms, "grpo", COLUMN, {"end": (-2, 0)}) if r["arm"] == "mine"]
    assert row["difference"] == pytest.approx(0.1)
    assert row["difference_error"] == pytest.approx(0.0707107)  # sqrt(.025/5)
    assert row["difference_df"] == 1
    assert row["p"] == pytest.approx(0.391827, abs=1e-6)  # t = sqrt 2, one degree: 1 - 2 atan(t)/pi


def test_differences_are_paired_by_seed() -> None:
    # Every seed is .1 lower, so the interval of the difference has no width.
    rows = metric_rows(ARMS, "grpo", COLUMN, {"end": (-2, 0)})
    (row,) = [row for row in rows if row["arm"] == "budget"]
    assert row["difference"] == pytest.approx(-0.1)
    assert row["difference_low"] == pytest.approx(-0.1)
    assert row["difference_high"] == pytest.approx(-0.1)
    assert row["value_low"] < row["value"] < row["value_high"]
    (control,) = [row for row in rows if row["arm"] == "grpo"]
    assert control["difference"] is None
    assert control["by_seed"] == pytest.approx([0.2, 0.3])


def test_few_seeds_that_are_no_pairs_are_judged_by_their_number() -> None:
    # Welch would count nearly four degrees of freedom of three seeds beside three others.
    values = [0.5, 0.3, 0.4]
    arms = {
        "grpo": [run_of("grpo", seed, [x] * 4) for seed, x in enumerate(values)],
        "budget": [run_of("budget", 9 + seed, [x + 0.1] * 4) for seed, x in enumerate(values)],
    }
    row = metric_rows(arms, "grpo", COLUMN, {"end": (-2, 0)})[1]
    assert row["difference"] == pytest.approx(0.1)
    assert row["difference_df"] == 2


def test_cells_have_two_columns_a_window() -> None:
    rows = judge_rows(metric_rows(ARMS, "grpo", COLUMN, {"end": (-2, 0)}))
    cells = metric_cells(rows, percent=True)
    assert cells.header == ["arm", "end %", "Δ end"]
    assert cells.body[1][2] == "-10.0 [-10.0, -10.0] *"
    assert cells.body[0][2] == ""
    assert "2 seeds" in cells.note


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        ((1, 2, 3, 4, 5), "paired by seed; 5 seeds"),
        ((1, 2, 3), "paired by seed where both have the same; 3 to 5 seeds"),
        ((6, 7, 8, 9, 10), "paired by seed where both have the same; 5 seeds"),
    ],
)
def test_cells_say_whether_differences_are_of_pairs(seeds: tuple[int, ...], words: str) -> None:
    arms = {
        arm: [run_of(arm, seed, [0.1 * (seed % 5) + step] * 4) for seed in own]
        for arm, own, step in (("grpo", (1, 2, 3, 4, 5), 0.0), ("budget", seeds, 0.1))
    }
    cells = metric_cells(judge_rows(metric_rows(arms, "grpo", COLUMN, {"end": (-2, 0)})))
    assert f"95 % intervals over seeds, each by itself; Δ to the control, {words}." in cells.note


def test_cells_of_one_seed_claim_no_intervals() -> None:
    arms = {arm: [run_of(arm, 1, [0.5] * 4)] for arm in ("grpo", "budget")}
    cells = metric_cells(judge_rows(metric_rows(arms, "grpo", COLUMN, {"end": (-2, 0)})))
    assert "mean over steps; 1 seed, without intervals; Δ to the control." in cells.note


def test_a_window_without_steps_and_an_unknown_control_are_errors() -> None:
    with pytest.raises(
        ValueError, match=r"'late' \[9, 12\]: x has no steps from 9 to 12; it has 0 to 4"
    ):
        metric_rows(ARMS, None, COLUMN, {"late": (9, 12)})
    with pytest.raises(ValueError, match="no steps from 3 to 2"):
        metric_rows(ARMS, None, COLUMN, {"turned": (-1, 2)})
    with pytest.raises(ValueError, match="control='x' is no arm"):
        metric_rows(ARMS, "x", COLUMN, {"all": (0, 4)})


@pytest.mark.parametrize("window", [(0, 5), (2, 9), (-5, 0)])
def test_a_window_that_runs_have_in_part_is_refused(window: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"x has no steps from .* to .*; it has 0 to 4"):
        metric_rows(ARMS, None, COLUMN, {"some": window})


UNEQUAL = {
    "grpo": [run_of("grpo", 1, [0.5, 0.3, 0.2, 0.2, 0.1, 0.1])],
    "budget": [run_of("budget", 1, [0.5, 0.1, 0.3])],
}


@pytest.mark.parametrize("window", [(-2, 0), (0, 0), (1, -1)])
def test_a_window_from_the_end_of_runs_of_unequal_length_is_refused(
    window: tuple[int, int],
) -> None:
    told = "counts from the end, which is step 3 of x and 6 of x: give steps from the start"
    with pytest.raises(ValueError, match=told):
        metric_rows(UNEQUAL, "grpo", COLUMN, {"end": window})
    with pytest.raises(ValueError, match=told):  # of one arm, too
        metric_rows({"all": [*UNEQUAL["grpo"], *UNEQUAL["budget"]]}, None, COLUMN, {"end": window})


def test_runs_of_unequal_length_are_compared_at_the_steps_that_all_have() -> None:
    rows = metric_rows(UNEQUAL, "grpo", COLUMN, {"start": (1, 3)})
    found = {row["arm"]: (row["value"], row["difference"]) for row in rows}
    assert found["grpo"] == (pytest.approx(0.25), None)
    assert found["budget"] == (pytest.approx(0.2), pytest.approx(-0.05))
    with pytest.raises(ValueError, match="no steps from 1 to 4; it has 0 to 3"):
        metric_rows(UNEQUAL, "grpo", COLUMN, {"start": (1, 4)})

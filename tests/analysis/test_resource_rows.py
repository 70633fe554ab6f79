"""What runs took: totals, shares of the seconds, peaks."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from e3rl.analysis.measures.resources import resource_rows
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.study_cells import resource_cells


def run_of(seed: int, seconds: float) -> Run:
    train = pd.DataFrame(
        {
            "rollout_step": [0, 1],
            "rollout/n": [256, 256],
            "rollout/tokens": [5000, 7000],
            "time/step_s": [seconds, seconds],
            "time/rollout_s": [seconds / 2, seconds / 2],
            "time/update_s": [seconds / 4, seconds / 4],
            "resources/cpu_s": [seconds, seconds],
            "resources/memory_gib": [1.0, 1.5],
        }
    )
    empty = pd.DataFrame()
    return Run(Path("x"), "grpo", seed, {}, train, empty, empty, empty, empty, None)


def test_figures_are_sums_over_steps_and_means_over_seeds() -> None:
    (row,) = resource_rows({"grpo": [run_of(1, 2.0), run_of(2, 4.0)]})
    assert (row["seeds"], row["steps"], row["rollouts"], row["tokens"]) == (2, 2, 512, 12000)
    assert (row["seconds"], row["cpu_seconds"]) == (6.0, 6.0)
    assert row["tokens_per_second"] == (12000 / 4 + 12000 / 8) / 2
    shares = [row[f"{part}_share"] for part in ("rollouts", "update", "other")]
    assert shares == pytest.approx([0.5, 0.25, 0.25])
    assert row["memory_gib"] == 1.5
    assert row["gpu_memory_gib"] is None


def test_rollouts_under_an_update_leave_nothing_to_the_rest() -> None:
    run = run_of(1, 2.0)
    run.train["time/update_s"] = [1.5, 1.5]
    (row,) = resource_rows({"grpo": [run]})
    assert (row["rollouts_share"], row["update_share"], row["other_share"]) == (0.5, 0.75, 0.0)


def test_the_table_leaves_out_what_nobody_recorded() -> None:
    cells = resource_cells(resource_rows({"grpo": [run_of(1, 2.0)]}))
    assert "GPU memory, GiB" not in cells.header
    assert dict(zip(cells.header, cells.body[0], strict=True))["tokens, millions"] == "0.01"


def test_a_run_that_was_cut_short_is_in_no_mean() -> None:
    short = run_of(3, 2.0)
    short = replace(short, train=short.train.head(1))
    (row,) = resource_rows({"grpo": [run_of(1, 2.0), run_of(2, 4.0), short]})
    assert (row["seeds"], row["steps"]) == (2, 2)

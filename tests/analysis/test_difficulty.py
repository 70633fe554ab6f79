from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.difficulty import budget_by_difficulty
from e3rl.analysis.sources.runs import PROMPT_COLUMNS, Run


def with_prompts(run: Run, rows: list[tuple[int, str, int, int, float]]) -> Run:
    """Rows of (epoch, prompt, n, correct, rank)."""
    table = pd.DataFrame(rows, columns=["epoch", "prompt_id", "n", "correct", "rank"])
    return replace(run, prompts=table.assign(rollout_step=0, source="x")[list(PROMPT_COLUMNS)])


def test_the_last_epoch_is_averaged_by_rank_of_the_time(run: Run) -> None:
    rows = [(0, "a", 8, 8, 0.9), (1, "a", 4, 4, 0.1), (1, "b", 6, 3, 0.2), (1, "c", 12, 0, 0.9)]
    band = budget_by_difficulty([with_prompts(run, rows)], bins=4)
    assert band is not None
    assert band.x.tolist() == [0.125, 0.875]
    assert band.mean.tolist() == [5, 12]


def test_seeds_have_a_range_where_all_have_prompts(run: Run) -> None:
    first = with_prompts(run, [(0, "a", 4, 4, 0.0), (0, "b", 12, 0, 0.5)])
    second = with_prompts(run, [(0, "a", 6, 4, 0.0)])
    band = budget_by_difficulty([first, second], bins=2)
    assert band is not None
    assert (band.x.tolist(), band.low.tolist(), band.high.tolist()) == ([0.25], [4], [6])
    assert (band.mean.tolist(), band.n_seeds) == ([5], 2)


def test_without_ranks_the_share_of_right_rollouts_over_the_run_ranks_prompts(run: Run) -> None:
    nan = np.nan
    rows = [(0, "a", 8, 0, nan), (0, "b", 8, 8, nan), (1, "a", 9, 8, nan), (1, "b", 7, 7, nan)]
    band = budget_by_difficulty([with_prompts(run, rows)], bins=2)
    assert band is not None
    assert band.mean.tolist() == [7, 9]  # b is easier: 15 of 15 against 8 of 17


def test_a_prompt_at_the_end_of_the_scale_belongs_to_the_last_interval(run: Run) -> None:
    band = budget_by_difficulty([with_prompts(run, [(0, "a", 5, 0, 1.0)])], bins=4)
    assert band is not None
    assert band.x.tolist() == [0.875]


def test_an_arm_without_prompts_has_none(run: Run) -> None:
    assert budget_by_difficulty([replace(run, prompts=run.prompts.head(0))]) is None


def test_a_recorded_budget_rises_with_difficulty(arms: dict[str, list[Run]]) -> None:
    band = budget_by_difficulty(arms["e3"])
    assert band is not None
    assert band.mean[0] == pytest.approx(4, abs=1)
    assert (np.diff(band.mean) > 0).all()

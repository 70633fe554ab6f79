import math

import numpy as np
import pytest

from e3rl.analysis.tables.cells import as_markdown
from e3rl.simulator.gradient import gradient_noise_scale, relative_variance
from e3rl.simulator.replay import PassResult
from e3rl.simulator.screening import NOTE, WORDS, screening_cells, screening_rows, sort_by_noise
from e3rl.simulator.summary import summarize_pass


@pytest.mark.parametrize("fixed", [True, False])
def test_a_cell_per_loss_of_the_prompts_that_were_sampled(fixed: bool) -> None:
    rates, rollouts = np.array([0.25, 0.5, 0.5]), np.array([6, 10, 0])
    result = PassResult(0, rates, rollouts, np.array([0.0, 5.0, 0.0]), 0, 24, 0.0, fixed)
    groups = (rates[:2], rollouts[:2], None if fixed else np.array([0.0, 5.0]))
    head = {"arm": "ts", "budget": "knapsack", "epoch": 0}
    rows = screening_rows(head | summarize_pass(result, 8), result, 8)
    assert [row["loss"] for row in rows] == ["grpo", "rloo_by_prompt"]
    for row in rows:
        assert (row["arm"], row["budget"], row["effective"]) == ("ts", "knapsack", 10 / 16)
        assert row["noise"] == gradient_noise_scale(row["loss"], *groups)
        assert row["variance"] == relative_variance(row["loss"], *groups[:2], 8, groups[2])


def cell(budget: str, noise: float, effective: float) -> dict[str, object]:
    shares = {"all_wrong": 0.1, "hits": 0.9, "reached": 1.0, "spent_share": 1.0}
    head = {"arm": "ts", "budget": budget, "loss": "grpo", "noise": noise, "variance": 1.0}
    return head | {"effective": effective} | shares


def test_cells_are_ordered_by_noise_then_by_effective_rollouts() -> None:
    rows = [cell("a", math.nan, 0.9), cell("b", 8.0, 0.9), cell("c", 6.0, 0.4), cell("d", 6.0, 0.5)]
    table = sort_by_noise(rows)
    assert table["budget"].tolist() == ["d", "c", "b", "a"]
    lines = as_markdown(screening_cells(table), WORDS).splitlines()
    assert lines[0].startswith("| # | arm | budget | loss | noise | variance | effective % | all")
    assert lines[2] == ("| 1 | ts | d | grpo | 6.0 | 1.00 | 50.0 | 10.0 | 90.0 | 100.0 | 100.0 |")
    assert lines[-1] == NOTE

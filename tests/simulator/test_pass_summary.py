import math

import numpy as np
import pytest

from e3rl.simulator.replay import PassResult
from e3rl.simulator.summary import count_prompts_by_rollouts, summarize_by_pass_rate, summarize_pass


def pass_result(
    rates: list[float], rollouts: list[int], right: list[float], fixed: bool = True
) -> PassResult:
    return PassResult(
        epoch=1,
        rates=np.array(rates),
        rollouts=np.array(rollouts),
        right=np.array(right),
        first_solved=2,
        cap=32,
        seconds=0.5,
        fixed=fixed,
    )


FOUND = pass_result([0.0, 0.25, 0.5, 1.0, 0.5], [10, 6, 4, 4, 0], [0, 3, 4, 4, 0])


def test_shares_are_of_the_prompts_that_were_sampled() -> None:
    found = summarize_pass(FOUND, 8)
    assert (found["all_wrong"], found["all_right"], found["mixed"]) == (0.25, 0.5, 0.25)
    assert (found["reached"], found["hits"]) == (0.8, 0.75)
    assert found["effective"] == 6 / 24
    assert (found["spent"], found["per_prompt"], found["spent_share"]) == (24, 6, 0.75)
    assert (found["first_solved"], found["seconds"]) == (2, 0.5)


def test_variance_is_that_of_leave_one_out_beside_even_groups() -> None:
    # Σ pq/(n-1) of the sampled prompts, over the same with n = 8.
    expected = (3 / 16 / 5 + 1 / 4 / 3) / ((3 / 16 + 1 / 4) / 7)
    assert summarize_pass(FOUND, 8)["gradient_variance"] == pytest.approx(expected)
    assert summarize_pass(pass_result([0.3] * 2, [8, 8], [1, 1]), 8)[
        "gradient_variance"
    ] == pytest.approx(1)


def test_variance_of_counts_that_followed_the_rewards_is_that_of_these() -> None:
    # 3 right of 6 and 1 of 4: c(n - c)/(n(n - 1)²) is 9/150 and 3/36; all right is nothing.
    found = pass_result([0.25, 0.5, 0.9, 0.5], [6, 4, 4, 0], [3, 1, 4, 0], fixed=False)
    expected = (9 / 150 + 3 / 36) / ((3 / 16 + 1 / 4 + 9 / 100) / 7)
    assert summarize_pass(found, 8)["gradient_variance"] == pytest.approx(expected)


def test_variance_is_unknown_where_nothing_varies() -> None:
    assert math.isnan(
        summarize_pass(pass_result([0.0, 1.0], [8, 8], [0, 8]), 8)["gradient_variance"]
    )
    assert math.isnan(summarize_pass(FOUND, 1)["gradient_variance"])


def test_quantiles_are_counts_that_occur() -> None:
    found = summarize_pass(FOUND, 8)
    assert [found[name] for name in ("n_05", "n_50", "n_95", "n_max")] == [4, 4, 10, 10]


def test_the_budget_by_pass_rate_keeps_the_ends_apart() -> None:
    found = pass_result([0.0, 0.05, 0.0999, 0.1, 0.95, 1.0], [2, 4, 6, 8, 2, 2], [0, 0, 3, 8, 1, 2])
    rows = summarize_by_pass_rate(found)
    assert [(row["rate_low"], row["rate_high"], row["prompts"]) for row in rows] == [
        (0, 0, 1),
        (0, 0.1, 2),
        (0.1, 0.2, 1),
        (0.9, 1, 1),
        (1, 1, 1),
    ]
    assert [row["rollouts"] for row in rows] == [2, 5, 8, 2, 2]
    assert [row["mixed"] for row in rows] == [0, 0.5, 0, 1, 0]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_the_histogram_counts_prompts_left_out_too() -> None:
    assert count_prompts_by_rollouts(FOUND) == [
        {"n": 0, "prompts": 1},
        {"n": 4, "prompts": 2},
        {"n": 6, "prompts": 1},
        {"n": 10, "prompts": 1},
    ]

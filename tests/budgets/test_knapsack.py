import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.base import SingleRound
from e3rl.budgets.knapsack import Knapsack
from e3rl.budgets.posterior import BetaPosterior
from e3rl.statistics.greedy import greedy_marginal_gain

PASS_RATES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1 / 9])


def value(p: np.ndarray, n: np.ndarray) -> float:
    return float(((1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2).sum())


def split(p: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    gains = Knapsack(low, high).gains(BetaPosterior(100 * p, 100 * (1 - p)))
    return greedy_marginal_gain(gains, total, low, high, np.arange(p.size, dtype=np.uint64))


def test_golden_allocation_and_value() -> None:
    counts = split(PASS_RATES, 64, 2, 64)
    assert counts.tolist() == [2, 16, 11, 7, 8, 2, 2, 16]
    assert value(PASS_RATES, counts) == pytest.approx(0.442749, abs=5e-7)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4), st.integers(0, 16))
def test_no_split_has_a_larger_value(rates: list[float], extra: int) -> None:
    p = np.array(rates)
    total = 2 * p.size + extra % (4 * p.size + 1)
    splits = itertools.product(range(2, 7), repeat=p.size)
    best = max(value(p, np.array(n)) for n in splits if sum(n) == total)
    assert value(p, split(p, total, 2, 6)) == pytest.approx(best)


def test_beliefs_are_posterior_means_of_all_rollouts_seen() -> None:
    rule = Knapsack(n_low=2, n_high=20)
    rule.observe(
        ["easy", "mixed", "hard"], [np.ones(8), np.repeat([1.0, 0.0], [3, 5]), np.zeros(8)]
    )
    rule.observe(["mixed"], [np.zeros(4)])
    # Means (1 + c)/(2 + n): 9/10, 4/14, 1/10, and 1/2 for the prompt never seen.
    p = np.array([0.9, 4 / 14, 0.1, 0.5])
    decision = rule.decide(["easy", "mixed", "hard", "new"], 32, 1, 1)
    assert isinstance(decision.allocation, SingleRound)
    brute = max(
        (n for n in itertools.product(range(2, 21), repeat=4) if sum(n) == 32),
        key=lambda n: value(p, np.array(n)),
    )
    assert decision.allocation.counts == list(brute)
    assert decision.ranks[:3].tolist() == [0, 1 / 3, 2 / 3]
    assert np.isnan(decision.ranks[3])


def test_figures_tell_what_unsolved_prompts_get_and_metrics_who_was_solved_first() -> None:
    rule = Knapsack(n_low=2, n_high=20)
    rule.observe(["a", "b"], [np.zeros(8), np.repeat([1.0, 0.0], [4, 4])])
    allocation = rule.decide(["a", "b"], 16, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    assert allocation.metrics()["unsolved_share"] == allocation.counts[0] / 16
    rule.observe(["a", "b"], [np.array([1.0, 0, 0, 0]), np.ones(4)])
    metrics = rule.metrics()
    assert metrics["first_solved"] == 1
    # Beliefs .1 and .5: (.9² + 3·.1²)/8 + 4·.5²/8.
    assert metrics["brier"] == pytest.approx((0.81 + 0.03 + 1) / 8)
    # Tenths of p̂: |4·.1 - 1| and |4·.5 - 4| over 8 rollouts.
    assert metrics["calibration_error"] == pytest.approx((0.6 + 2) / 8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_low": 1}, "n_low=1.*at least 2"),
        ({"n_low": 8, "n_high": 6}, "n_high=6 lies below n_low=8"),
        ({"prior": [0, 1]}, "prior="),
        ({"decay": 0.0}, "decay=0.0"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Knapsack(**arguments)

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.base import NORMS, SingleRound
from e3rl.budgets.grad_norms import GradNorms
from e3rl.budgets.neyman import Neyman
from e3rl.budgets.posterior import BetaPosterior
from e3rl.statistics.greedy import greedy_marginal_gain

PASS_RATES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1 / 9])
H = {
    "sqrt_pq": lambda n: 1 / (n - 1),
    "vip_drgrpo": lambda n: (n - 1) / n**2,
    "gvm": lambda n: 1 / n,
    "cures": lambda n: 1 / n,
}
V = {
    "sqrt_pq": lambda p: p * (1 - p),
    "vip_drgrpo": lambda p: p * (1 - p),
    "gvm": lambda p: 1 / (p + 1e-3 / p),
    "cures": lambda p: p * (1 - p),
}


def certain(p: np.ndarray) -> BetaPosterior:
    """So many rollouts that E[p(1 - p)] is p(1 - p)."""
    return BetaPosterior(1e12 * p, 1e12 * (1 - p))


def split(weight: Any, p: np.ndarray, total: int, low: int, high: int) -> np.ndarray:
    gains = Neyman(weight, unit_norms=True, n_low=low, n_high=high).gains(certain(p))
    return greedy_marginal_gain(gains, total, low, high, np.arange(p.size, dtype=np.uint64))


@pytest.mark.parametrize("weight", V)
@settings(deadline=None, max_examples=20)
@given(rates=st.lists(st.floats(0.01, 0.99), min_size=1, max_size=4), extra=st.integers(0, 16))
def test_no_split_has_a_smaller_variance(weight: str, rates: list[float], extra: int) -> None:
    p = np.array(rates)
    total = 3 * p.size + extra % (4 * p.size + 1)

    def variance(n: Any) -> float:
        return float((V[weight](p) * H[weight](np.array(n, dtype=float))).sum())

    splits = itertools.product(range(3, 8), repeat=p.size)
    best = min(variance(n) for n in splits if sum(n) == total)
    assert variance(split(weight, p, total, 3, 7)) == pytest.approx(best)


def test_dr_grpo_counts_are_next_to_the_golden_continuous_solution() -> None:
    counts = split("vip_drgrpo", PASS_RATES, 64, 3, 32)
    golden = np.array([3, 7.3, 11.2, 13.2, 11.2, 7.3, 3, 7.7])
    assert counts.sum() == 64
    assert (np.abs(counts - golden) < 1).all()


def test_leave_one_out_counts_are_next_to_one_plus_lambda_deviations() -> None:
    deviations = np.sqrt(PASS_RATES * (1 - PASS_RATES))
    shares = 1 + deviations * (64 - 8) / deviations.sum()
    assert (np.abs(split("sqrt_pq", PASS_RATES, 64, 2, 32) - shares) < 1).all()


def test_gvm_gives_hard_prompts_most_but_hopeless_ones_little() -> None:
    p = np.array([1e-6, 0.03, 0.3, 0.9])
    hopeless, hard, middle, easy = split("gvm", p, 64, 2, 60)
    assert hopeless == 2
    assert hard > middle > easy > hopeless


def test_an_uncertain_pass_rate_has_less_expected_variance_than_its_mean() -> None:
    # E[p(1-p)]: 1/6 for Beta(1, 1), which is 1/4 at its mean; 50·50/(100·101) for Beta(50, 50).
    gain = Neyman().gains(BetaPosterior(np.array([1.0, 50.0]), np.array([1.0, 50.0])))
    found = gain(np.array([0, 1]), np.array([2, 2]))
    assert found.tolist() == pytest.approx([1 / 12, 2500 / 10100 / 2])


def test_tokens_as_cost_divide_deviations_by_the_root_of_the_length() -> None:
    rule, ids = Neyman(cost="tokens"), ["short", "long"]
    for _ in range(2):
        rule.describe(ids, {"length": np.array([10.0, 40.0])})
        rule.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2)
    allocation = rule.decide(ids, 24, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    # n - 1 goes as 1/√L, 2 to 1; n₁ + 4·n₂ = 60 gives 19.3 and 10.2.
    assert allocation.counts == [20, 10]
    metrics = allocation.metrics()
    assert (metrics["token_cap"], metrics["tokens_share"]) == (24 * 25, 1)


def test_lengths_that_were_never_told_are_an_error() -> None:
    rule = Neyman(cost="tokens")
    rule.observe(["a"], [np.ones(2)])
    with pytest.raises(ValueError, match="cost=tokens: no completion length was ever told"):
        rule.decide(["a"], 4, 1, 1)


def test_prompts_of_unknown_length_are_expected_to_be_like_the_mean_prompt() -> None:
    rule = Neyman(cost="tokens")
    rule.describe(["a", "b"], {"length": np.array([10.0, 40.0])})
    expected = rule.expected_tokens(["b", "new"])
    assert expected is not None
    assert expected.tolist() == [40, 25]
    assert Neyman().expected_tokens(["b"]) is None


def moments(*columns: list[float]) -> dict[str, np.ndarray]:
    """`NORMS` of prompts, a column for each."""
    return dict(zip(NORMS, np.array(columns).T, strict=True))


def shares(rule: Neyman, ids: list[str], total: int) -> np.ndarray:
    allocation = rule.decide(ids, total, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    return np.array(allocation.counts) / total


@pytest.mark.parametrize("weight", ["gvm", "cures"])
def test_of_equal_pass_rates_the_larger_norm_gets_more_in_proportion(weight: Any) -> None:
    # g = 1 and 3 of all rollouts, p = 1/2: both deviations are proportional to g.
    rule, ids = Neyman(weight, n_high=400), ["small", "large"]
    rule.describe(ids, moments([1, 1, 1, 1], [3, 9, 3, 9]))
    rule.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2)
    assert rule.needs_grad_norms
    assert shares(rule, ids, 400).tolist() == pytest.approx([1 / 4, 3 / 4], abs=0.005)
    unit = Neyman(weight, unit_norms=True, n_high=400)
    unit.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2)
    assert not unit.needs_grad_norms
    assert shares(unit, ids, 400).tolist() == [1 / 2, 1 / 2]


def test_cures_counts_follow_the_deviation_of_unequal_norms() -> None:
    # p = q = 1/2. a: g = 2 if right, 1 if wrong: (4 + 1)/8 - (2 - 1)²/16 = 9/16, deviation 3/4.
    # b: g = 1 throughout: 2/8 = 1/4, deviation 1/2.
    rule, ids = Neyman("cures", n_high=400), ["a", "b"]
    rule.describe(ids, moments([2, 4, 1, 1], [1, 1, 1, 1]))
    rule.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2)
    assert shares(rule, ids, 400).tolist() == pytest.approx([3 / 5, 2 / 5], abs=0.005)


def test_a_prompt_that_was_never_solved_is_expected_to_have_the_mean_norm() -> None:
    rule, ids = Neyman("gvm", n_high=400), ["a", "b", "unsolved"]
    nan = float("nan")
    rule.describe(ids, moments([1, 1, 5, 25], [3, 9, 5, 25], [nan, nan, 5, 25]))
    rule.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2 + [np.zeros(8)])
    # Mean pass rates 1/2, 1/2, 1/10; weights g/√(p + α/p) with g = 1, 3, 2.
    weights = np.array([1, 3, 2]) / np.sqrt([0.502, 0.502, 0.11])
    found = shares(rule, ids, 400)
    assert found.tolist() == pytest.approx((weights / weights.sum()).tolist(), abs=0.005)


def test_norms_are_means_over_visits_and_survive_a_checkpoint() -> None:
    rule, ids = Neyman("gvm", n_high=400), ["a", "b"]
    for norm in (2.0, 4.0):  # the mean is 3
        rule.describe(ids, moments([norm] * 4, [1.0] * 4))
        rule.observe(ids, [np.repeat([1.0, 0.0], 4)] * 2)
    resumed = Neyman("gvm", n_high=400)
    resumed.load_state_dict(rule.state_dict())
    assert shares(resumed, ids, 400).tolist() == pytest.approx([3 / 4, 1 / 4], abs=0.005)


def test_norms_that_were_never_told_are_an_error() -> None:
    rule = Neyman("gvm")
    rule.decide(["a"], 4, 0, 0)
    rule.observe(["a"], [np.ones(2)])
    with pytest.raises(ValueError, match="weight=gvm: no gradient norm was ever told; set unit_no"):
        rule.decide(["a"], 4, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight": "vip"}, "weight='vip'"),
        ({"cost": "seconds"}, "cost='seconds'"),
        ({"weight": "vip_drgrpo"}, "n_low=2.*at least 3"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Neyman(**arguments)


def test_before_any_right_rollout_right_and_wrong_ones_are_taken_for_alike() -> None:
    norms = GradNorms(decay=1.0)
    nan = np.full(2, np.nan)
    wrong, squared = np.array([2.0, 4.0]), np.array([5.0, 17.0])
    norms.describe(["a", "b"], dict(zip(NORMS, (nan, nan, wrong, squared), strict=True)))
    found = norms.of(["a", "b", "c"])
    assert found.right.tolist() == found.wrong.tolist() == [2.0, 4.0, 3.0]
    assert found.right_squared.tolist() == found.wrong_squared.tolist() == [5.0, 17.0, 11.0]

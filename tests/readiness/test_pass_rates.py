"""Pass rates behind a few rollouts, by hand and by brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.readiness.pass_rates import (
    MEANS,
    STRENGTHS,
    count_by_solve_rate,
    draw_rates,
    expect_outcomes,
    fit_posterior,
    fit_prior,
    predict_group_outcomes,
)


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def test_groups_of_evenly_spread_pass_rates_split_as_the_integrals_say() -> None:
    flat = np.ones(1)
    assert expect_outcomes(flat, flat, 2).ravel() == pytest.approx([1 / 3] * 3)
    assert expect_outcomes(flat, flat, 8).ravel() == pytest.approx([1 / 9, 1 / 9, 7 / 9])
    leaning = expect_outcomes(np.array([2.0, 1.0]), np.array([1.0, 2.0]), 1)
    assert leaning == pytest.approx(np.array([[1 / 3, 2 / 3], [2 / 3, 1 / 3], [0, 0]]))


def test_a_sample_without_a_right_rollout_tells_as_much_as_its_prompts_at_most() -> None:
    groups = predict_group_outcomes(np.zeros(64, dtype=int), np.full(64, 8), 8)
    assert groups.mixed.mean < 0.01
    # Wilson's 0 of 64 trials is [0, 5.7] %.
    assert groups.mixed.high == pytest.approx(0.057, abs=1e-3)
    assert groups.all_wrong.low == pytest.approx(0.943, abs=1e-3)


def test_intervals_of_shares_hold_the_truth_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    # Rates are Beta(1/2, 3/2): E[qᴳ] = Π (b + j)/(a + b + j), by the same product as above.
    true = expect_outcomes(np.array(0.5), np.array(1.5), 8).tolist()
    hits = np.zeros(3)
    for seed in range(100):
        right = generator.binomial(8, generator.beta(0.5, 1.5, 64))
        groups = predict_group_outcomes(right, np.full(64, 8), 8, seed)
        found = (groups.all_wrong, groups.all_right, groups.mixed)
        hits += [each.low <= share <= each.high for each, share in zip(found, true, strict=True)]
    assert hits.min() >= 88


def test_two_rollouts_tell_less_than_eight_and_the_same_seed_the_same() -> None:
    rates = np.random.default_rng(1).beta(0.5, 1.5, 64)
    widths = []
    for n in (2, 8):
        right = np.random.default_rng(2).binomial(n, rates)
        groups = predict_group_outcomes(right, np.full(64, n), 8)
        assert groups == predict_group_outcomes(right, np.full(64, n), 8)
        widths.append(groups.mixed.high - groups.mixed.low)
    assert widths[0] > 1.5 * widths[1]


def test_a_prior_is_the_likeliest_of_the_grid() -> None:
    right, rollouts = np.array([0, 0, 1, 3, 8, 5]), np.array([8, 8, 8, 4, 8, 6])
    found = fit_prior(right, rollouts)

    def likelihood(a: float, b: float) -> float:
        return sum(
            log_beta(a + c, b + n - c) - log_beta(a, b)
            for c, n in zip(right.tolist(), rollouts.tolist(), strict=True)
        )

    grid = [(m * s, (1 - m) * s) for m in MEANS.tolist() for s in STRENGTHS.tolist()]
    assert likelihood(*found) == pytest.approx(max(likelihood(*each) for each in grid))


def test_heaps_at_the_ends_make_a_weak_prior_and_equal_rates_a_strong_one() -> None:
    eight = np.full(20, 8)
    a, b = fit_prior(np.array([0, 8] * 10), eight)
    assert (a, b) == pytest.approx((0.05, 0.05))
    a, b = fit_prior(np.full(20, 4), eight)
    assert (a, b) == pytest.approx((50, 50))


def test_an_unsolved_prompt_is_believed_in_as_far_as_the_others_were_solved() -> None:
    eight = np.full(20, 8)
    among_solved = fit_posterior(np.array([0] + [4] * 19), eight)
    hard = np.array([0] * 19 + [4])
    among_unsolved = fit_posterior(hard, eight)
    assert among_solved.mean[0] > 0.2
    assert among_unsolved.mean[0] < 0.03
    assert predict_group_outcomes(hard, eight, 8).all_wrong.mean == pytest.approx(0.93, abs=0.03)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=12), st.integers(1, 20))
def test_shares_of_groups_are_shares(right: list[int], group_size: int) -> None:
    groups = predict_group_outcomes(np.array(right), np.full(len(right), 6), group_size)
    shares = [groups.all_wrong.mean, groups.all_right.mean, groups.mixed.mean]
    assert min(shares) >= -1e-9
    assert sum(shares) == pytest.approx(1)


def test_drawn_rates_have_the_mean_and_spread_of_the_belief() -> None:
    # A posterior is its prior and the counts, here of so many prompts that a sample is as another.
    right, rollouts = np.tile([1, 15], 10_000), np.tile([4, 20], 10_000)
    a, b = fit_prior(right, rollouts)
    rates = draw_rates(right, rollouts, 20_000, np.random.default_rng(0))
    one, other = (a + 1) / (a + b + 4), (a + 15) / (a + b + 20)
    assert rates.mean() == pytest.approx((one + other) / 2, abs=0.01)
    squares = (one * (a + 2) / (a + b + 5), other * (a + 16) / (a + b + 21))  # E[p²] of both
    assert (rates**2).mean() == pytest.approx(sum(squares) / 2, abs=0.01)


def test_drawn_rates_differ_by_what_a_sample_leaves_open() -> None:
    # Half of 16 prompts always solved, half never: the mean of 16 such varies by 1/2 over √16.
    right, rollouts = np.repeat([0, 64], 8), np.full(16, 64)
    generator = np.random.default_rng(0)
    means = [draw_rates(right, rollouts, 1000, generator).mean() for _ in range(200)]
    assert np.std(means) == pytest.approx(1 / 8, rel=0.15)


def test_the_ends_of_the_histogram_hold_never_and_always() -> None:
    found = count_by_solve_rate(np.array([0, 1, 2, 4, 6, 7, 8]), np.full(7, 8))
    assert found == {
        "never": 1,
        "up to 25 %": 1,
        "25 to 50 %": 1,
        "50 to 75 %": 1,
        "75 % and more": 2,
        "always": 1,
    }

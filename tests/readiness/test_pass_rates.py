"""Pass rates behind a few rollouts, by hand and by brute force."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.posterior import BetaPosterior
from e3rl.readiness.pass_rates import (
    MEANS,
    STRENGTHS,
    count_by_solve_rate,
    draw_rates,
    fit_posterior,
    fit_prior,
    predict_group_outcomes,
)


def log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def test_groups_of_evenly_spread_pass_rates_split_as_the_integrals_say() -> None:
    flat = BetaPosterior(np.ones(3), np.ones(3))
    two, eight = predict_group_outcomes(flat, 2), predict_group_outcomes(flat, 8)
    assert [two.all_wrong.mean, two.all_right.mean, two.mixed.mean] == pytest.approx([1 / 3] * 3)
    assert eight.all_wrong.mean == pytest.approx(1 / 9)
    assert eight.mixed.mean == pytest.approx(7 / 9)
    leaning = predict_group_outcomes(BetaPosterior(np.array([2.0, 1.0]), np.array([1.0, 2.0])), 1)
    assert [leaning.all_wrong.mean, leaning.mixed.mean] == pytest.approx([0.5, 0.0])
    # Two prompts tell as much as two trials at most: Wilson's of one in two.
    assert (leaning.all_wrong.low, leaning.all_wrong.high) == pytest.approx(
        (0.0945, 0.9055), abs=1e-4
    )


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
    among_unsolved = fit_posterior(np.array([0] * 19 + [4]), eight)
    assert among_solved.mean[0] > 0.2
    assert among_unsolved.mean[0] < 0.03
    assert predict_group_outcomes(among_unsolved, 8).all_wrong.mean == pytest.approx(0.93, abs=0.03)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=2, max_size=12), st.integers(1, 20))
def test_shares_of_groups_are_shares(right: list[int], group_size: int) -> None:
    groups = predict_group_outcomes(
        fit_posterior(np.array(right), np.full(len(right), 6)), group_size
    )
    shares = [groups.all_wrong.mean, groups.all_right.mean, groups.mixed.mean]
    assert min(shares) >= -1e-9
    assert sum(shares) == pytest.approx(1)


def test_drawn_rates_have_the_mean_and_spread_of_the_belief() -> None:
    posterior = BetaPosterior(np.array([1.0, 30.0]), np.array([1.0, 10.0]))
    rates = draw_rates(posterior, 20_000, np.random.default_rng(0))
    assert rates.mean() == pytest.approx((0.5 + 0.75) / 2, abs=0.01)
    second = (1 / 12 + 0.25 + 30 * 31 / (40 * 41)) / 2  # E[p²] of both
    assert (rates**2).mean() == pytest.approx(second, abs=0.01)


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

import numpy as np
import pytest

from e3rl.statistics.bootstrap import cluster_bootstrap, hierarchical_bootstrap, mean_of_sets
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import (
    difference_intervals,
    difference_intervals_of_sets,
    share_interval,
    share_intervals,
    share_intervals_of_sets,
    wilson_interval,
)


def bounds(interval):
    return interval.low, interval.high


def test_wilson_interval_worked_by_hand():
    # z = 1.96: (0.1 + 3.8415/20 ± 1.96 √(0.009 + 3.8415/400)) / (1 + 3.8415/10)
    assert bounds(wilson_interval(0.1, 10)) == pytest.approx((0.017876, 0.404150), abs=1e-5)
    # 0 of n: z²/(n + z²)
    assert bounds(wilson_interval(0.0, 64)) == (0.0, pytest.approx(3.8415 / 67.8415, abs=1e-5))
    assert bounds(wilson_interval(1.0, 64)) == (pytest.approx(64 / 67.8415, abs=1e-5), 1.0)
    for mean, n in ((1.1, 5), (-0.1, 5), (0.5, 0)):
        with pytest.raises(ValueError, match="must lie in"):
            wilson_interval(mean, n)


@pytest.mark.parametrize(("share", "low", "high"), [(0.0, 0.0, 0.0566), (1.0, 0.9434, 1.0)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_none_and_all_of_64_problems_have_width(share, low, high, seeds):
    interval = share_interval(np.full((seeds, 64), share))
    assert bounds(interval) == pytest.approx((low, high), abs=1e-4)
    assert interval.mean == share


def test_many_rollouts_of_one_problem_say_little_of_problems():
    # 3.8415/4.8415 for none of 64 rollouts of the one problem
    assert bounds(share_interval([0.0])) == pytest.approx((0.0, 0.7935), abs=1e-4)
    assert bounds(share_interval([0.5])) == pytest.approx((0.0546, 0.9454), abs=1e-4)


def test_pass_at_k_is_as_wide_at_the_edge_as_pass_at_1():
    n, correct = np.full(64, 8), np.zeros(64, int)
    table = np.stack([pass_at_k(n, correct, k) for k in (1, 8)], axis=1)
    one, eight = share_intervals(table)
    assert bounds(one) == bounds(eight) == pytest.approx((0.0, 0.0566), abs=1e-4)


def test_away_from_the_edges_the_bootstrap_is_left_alone():
    rng = np.random.default_rng(0)
    table = rng.random((3, 40))
    assert share_interval(table) == hierarchical_bootstrap(table)
    assert share_interval(table[0]) == cluster_bootstrap(table[0])
    few = np.repeat([0.0, 1.0], [54, 10])
    assert share_interval(few) == cluster_bootstrap(few)


def test_one_problem_too_few_above_0_widens():
    few = np.repeat([0.0, 1.0], [55, 9])
    plain, wide = cluster_bootstrap(few), share_interval(few)
    wilson = wilson_interval(9 / 64, 64)
    assert wide.low == min(plain.low, wilson.low)
    assert wide.high == max(plain.high, wilson.high)


@pytest.mark.parametrize(
    ("problems", "rollouts"), [(8, 4), (32, 1), (32, 16), (64, 4), (200, 1), (200, 8)]
)
@pytest.mark.parametrize("spread", ["none", "beta", "all or nothing"])
def test_coverage_near_the_edges_is_nominal(problems, rollouts, spread):
    """200 experiments for each share, whose problems have equal or very unequal chances."""
    rng = np.random.default_rng(problems + rollouts)
    for share in (0.003, 0.02, 0.98, 0.995):
        size = (problems, 200)
        chances = {
            "none": np.full(size, share),
            "beta": rng.beta(0.3 * share, 0.3 * (1 - share), size),
            "all or nothing": (rng.random(size) < share).astype(float),
        }[spread]
        found = share_intervals(rng.binomial(rollouts, chances) / rollouts)
        covered = np.mean([each.low <= share <= each.high for each in found])
        assert covered >= 0.93, (share, covered)


def test_a_set_at_the_edge_widens_the_mean_of_sets():
    rng = np.random.default_rng(0)
    inner, edge = rng.random((50, 1)), np.zeros((64, 1))
    (alone,) = share_intervals_of_sets([inner, inner])
    assert [alone] == mean_of_sets([inner, inner])
    (both,) = share_intervals_of_sets([inner, edge])
    (part,) = share_intervals(inner)
    assert both.mean == pytest.approx(part.mean / 2)
    above = np.hypot(part.high - part.mean, 0.0566) / 2
    assert both.high == pytest.approx(both.mean + above, abs=2e-3)
    (zero,) = share_intervals_of_sets([edge, edge])
    assert bounds(zero) == pytest.approx((0.0, np.hypot(0.0566, 0.0566) / 2), abs=1e-4)


def test_two_methods_that_solve_nothing_are_not_known_to_be_equal():
    # Of 64 problems none differs: up to 1 - 0.025^(1/64) = 5.6 % may.
    (none,) = difference_intervals(np.zeros((64, 1)))
    assert bounds(none) == pytest.approx((-0.0560, 0.0560), abs=1e-4)
    (all_,) = difference_intervals(np.ones((64, 1)))
    assert bounds(all_) == pytest.approx((1 - 2 * 0.0560, 1.0), abs=1e-4)
    (mean,) = difference_intervals_of_sets([np.zeros((64, 1))] * 2)
    assert bounds(mean) == pytest.approx((-0.0396, 0.0396), abs=1e-4)
    mixed = np.random.default_rng(0).normal(size=(30, 1)).clip(-1, 1)
    assert difference_intervals(mixed) == [cluster_bootstrap(mixed[:, 0])]


def test_what_is_no_share_is_refused():
    with pytest.raises(ValueError, match=r"shares lie in \[0, 1\], got \[46"):
        share_interval([0.5, 46.0])

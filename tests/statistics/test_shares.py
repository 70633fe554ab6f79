import math
from dataclasses import replace

import numpy as np
import pytest

from e3rl.statistics.means import mean_over_seeds_and_problems
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import (
    difference_of_shares,
    differences_of_sets,
    differences_of_shares,
    gain_interval,
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


def test_lopsided_luck_of_runs_moves_the_bound_towards_the_middle():
    # Five runs of 10 000 like problems at 1, 2, 4, 8 and 16 in a hundred: logarithms ln 2 apart.
    x = np.array([0.01, 0.02, 0.04, 0.08, 0.16])
    table = np.repeat(x[:, None], 10_000, axis=1)
    interval = share_interval(table)
    logs = math.log(2) ** 2 * 2.5  # the variance of 0, 1, 2, 3, 4 is 2.5
    reach = 2.7764 * math.sqrt(logs / 5 + logs**2 / 8)
    cox = 0.04 * math.exp(logs / 2 + reach) - 0.062
    student = 2.7764 * x.std(ddof=1) / math.sqrt(5)
    plain = wilson_interval(0.062, 0.062 * 0.938 / (x.var(ddof=1) / 5), df=4)
    more = (cox**2 - student**2) * (1 - 2 * 0.062)
    high = 0.062 + math.sqrt((plain.high - 0.062) ** 2 + more)
    assert bounds(interval) == pytest.approx((plain.low, high), abs=2e-3)
    assert interval.high > 1.5 * plain.high
    mirrored = share_interval(1 - table)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx(bounds(interval))


def test_luck_that_is_even_moves_nothing_to_speak_of():
    even = np.repeat(np.array([0.46, 0.48, 0.5, 0.52, 0.54])[:, None], 200, axis=1)
    found = mean_over_seeds_and_problems(even, skewed=True)
    plain = wilson_interval(0.5, 0.25 / found.standard_error**2, df=found.df)
    assert bounds(share_interval(even)) == pytest.approx(bounds(plain))
    near = share_interval(even - 0.4)
    found = mean_over_seeds_and_problems(even - 0.4, skewed=True)
    plain = wilson_interval(0.1, 0.09 / found.standard_error**2, df=found.df)
    assert near.high == pytest.approx(plain.high, abs=0.03)


def test_runs_at_the_edge_have_a_bound():
    table = np.zeros((5, 64))
    table[0] = 0.5
    interval = share_interval(table)
    assert (interval.mean, interval.low) == (0.1, pytest.approx(0.0, abs=0.03))
    assert interval.high == 1.0
    assert share_interval(np.zeros((5, 64))).high == pytest.approx(0.057, abs=1e-3)


def test_away_from_the_edges_the_effective_number_is_that_of_the_variance():
    # A mean of .5 whose squared error is .001 is worth 250 trials.
    table = np.random.default_rng(0).random((3, 40))
    found = mean_over_seeds_and_problems(table, skewed=True)
    n = found.mean * (1 - found.mean) / found.standard_error**2
    expected = wilson_interval(found.mean, n, df=found.df)
    assert bounds(share_interval(table)) == pytest.approx(bounds(expected), abs=2e-4)
    assert n > 40  # not held to the number of problems


def test_a_share_of_seeds_that_tie_by_chance_has_a_width():
    """Two seeds solve half of 40 problems each, the other half: all of ±1/2 is rest, MSₑ = 20/39,
    of which 80 values make the squared error 1/156, as 39 trials at one half have."""
    first = np.tile([1.0, 0.0], 20)
    interval = share_interval(np.stack([first, 1 - first]))
    assert interval.mean == 0.5
    assert bounds(interval) == pytest.approx(bounds(wilson_interval(0.5, 39, df=39)))


def test_where_too_few_problems_are_solved_no_more_is_known_than_of_one_rollout_each():
    rare = np.zeros(256)
    rare[:3] = 1 / 16
    interval = share_interval(rare)
    assert interval.high >= wilson_interval(rare.mean(), 256).high > 0.015
    enough = np.zeros(256)
    enough[:10] = 1 / 16
    assert share_interval(enough).high < 0.5 * interval.high


def test_a_t_interval_of_few_seeds_is_wider_than_a_normal_one():
    assert bounds(wilson_interval(0.5, 100, df=4)) == pytest.approx((0.3662, 0.6338), abs=1e-4)
    assert bounds(wilson_interval(0.5, 100)) == pytest.approx((0.4038, 0.5962), abs=1e-4)


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


def test_the_distances_of_sets_add_up_as_errors_do():
    inner, edge = np.random.default_rng(0).random((50, 1)), np.zeros((64, 1))
    (both,), (part,) = share_intervals_of_sets([inner, edge]), share_intervals(inner)
    assert both.mean == pytest.approx(part.mean / 2)
    above = np.hypot(part.high - part.mean, 0.0566) / 2
    assert both.high == pytest.approx(both.mean + above, abs=1e-4)
    (zero,) = share_intervals_of_sets([edge, edge])
    assert bounds(zero) == pytest.approx((0.0, np.hypot(0.0566, 0.0566) / 2), abs=1e-4)
    for sets in ([inner, np.ones((3, 2))], []):
        with pytest.raises(ValueError, match="equally many statistics"):
            share_intervals_of_sets(sets)


def test_two_methods_that_solve_nothing_are_not_known_to_be_equal():
    # With one problem for each side: √(2/65/66) = .0216, times 1.997 of 65 degrees.
    (none,) = differences_of_shares(np.zeros((64, 1)))
    assert bounds(none.interval()) == pytest.approx((-0.0431, 0.0431), abs=1e-4)
    assert none.p_value == 1.0
    (all_,) = differences_of_shares(np.ones((64, 1)))
    assert all_.mean == 1.0
    assert bounds(all_.interval())[0] == pytest.approx(64 / 66 - 0.0431, abs=0.02)
    assert all_.p_value < 1e-6
    several = difference_of_shares(np.zeros((3, 64)), np.zeros((3, 64)), paired_seeds=True)
    assert bounds(several.interval()) == pytest.approx((-0.0431, 0.0431), abs=1e-3)


def test_differences_of_most_problems_are_left_alone():
    mixed = np.random.default_rng(0).normal(size=(30, 2)).clip(-0.9, 0.9)
    first, _ = differences_of_shares(mixed)
    assert first == replace(mean_over_seeds_and_problems(mixed[:, :1].T), largest=1.0)
    (over,) = differences_of_sets([mixed[:, :1], -mixed[:, :1]])
    assert over.mean == pytest.approx(0.0)
    assert over.standard_error == pytest.approx(first.standard_error / np.sqrt(2))


def test_a_mean_of_sets_is_drawn_in_by_their_centres() -> None:
    """Of 64 problems all of which differ by 1 the centre is 64/66."""
    (over,) = differences_of_sets([np.ones((64, 1)), np.ones((64, 1))])
    assert over.center == pytest.approx(64 / 66)


def test_few_problems_that_are_solved_are_worth_one_rollout_each() -> None:
    """Nine of 256 at a sixteenth, one too few for their own variance: Wilson's bound of 256."""
    rates = np.zeros(256)
    rates[:9] = 1 / 16
    assert share_interval(rates).high == pytest.approx(0.018861, abs=1e-6)
    rates[9] = 1 / 16
    assert share_interval(rates).high < 0.018


def test_a_gain_from_nothing_keeps_the_tail_of_few_lucky_runs() -> None:
    lucky = np.repeat(np.array([0.01, 0.02, 0.04, 0.08, 0.16])[:, None], 10_000, axis=1)
    found = gain_interval(lucky, np.zeros_like(lucky))
    assert found.mean == pytest.approx(0.062)
    assert found.high == pytest.approx(0.39636, abs=1e-4)


def test_no_bound_of_a_difference_is_beyond_what_shares_can_differ_by() -> None:
    mine, other = [[0.0] * 8, [1.0] * 8], [[1.0] * 8, [0.0] * 8]  # two seeds: -1 and +1
    found = difference_of_shares(mine, other, paired_seeds=True).interval()
    assert (found.mean, found.low, found.high) == (0.0, -1.0, 1.0)
    twice = difference_of_shares(mine, other, paired_seeds=True, largest=2.0).interval()
    assert (twice.low, twice.high) == (-2.0, 2.0)
    assert difference_of_shares(mine, other, paired_seeds=True).p_value == 1.0


def test_what_is_no_share_is_refused():
    with pytest.raises(ValueError, match=r"shares lie in \[0, 1\], got \[46"):
        share_interval([0.5, 46.0])


def test_a_gain_is_a_difference_whose_bound_moves_with_lucky_runs() -> None:
    """Five runs of which one finds what the others do not: the share's bound moves, and so does
    that of the gain over a policy that solves nothing, by as much in squares."""
    rng = np.random.default_rng(3)
    rates = np.array([0.01, 0.01, 0.01, 0.02, 0.3])[:, None]
    after = rng.binomial(16, np.broadcast_to(rates, (5, 200))) / 16
    before = np.zeros_like(after)
    plain = difference_of_shares(after, before, paired_seeds=True).interval()
    found = gain_interval(after, before)
    assert (found.mean, found.low) == (plain.mean, max(0.0, plain.low))
    assert found.high > plain.high + 0.01
    even = np.full((5, 1), 0.5) * np.ones((1, 200))
    level = rng.binomial(16, even) / 16  # nothing is lopsided at one half
    assert gain_interval(level, before).high == pytest.approx(
        difference_of_shares(level, before, paired_seeds=True).interval().high, abs=1e-3
    )
    mirrored = gain_interval(1 - after, np.ones_like(after))  # a loss from all to nearly all
    assert mirrored.low == pytest.approx(-found.high)
    assert mirrored.high == pytest.approx(-found.low)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([[0.9] * 4] * 5, [[0.0] * 4] * 4 + [[0.1] * 4]),  # a loss, and one run that lost less
        ([[0.2] * 4] * 5, [[1.0] * 4] * 4 + [[0.0] * 4]),  # a gain, and one run that is lost
        ([[0.0] * 4] * 5, [[1.0] * 4] * 5),
        ([[0.5], [0.5]], [[0.2], [0.2]]),  # one problem
        ([[0.0] * 50] * 2, [[0.01] * 50, [0.02] * 50]),
    ],
)
def test_no_gain_is_beyond_what_can_be_gained_or_lost(
    before: list[list[float]], after: list[list[float]]
) -> None:
    found, start = gain_interval(after, before), np.mean(before)
    assert -start - 1e-12 <= found.low <= found.mean <= found.high <= 1 - start + 1e-12


def test_a_gain_of_one_run_is_the_difference() -> None:
    after, before = np.array([[1.0, 0.5, 0.0, 1.0]]), np.array([[0.5, 0.5, 0.0, 0.0]])
    plain = difference_of_shares(after, before, True).interval()
    found = gain_interval(after, before)
    assert (found.mean, found.high) == (plain.mean, min(0.75, plain.high))
    assert found.low == max(-0.25, plain.low)


@pytest.mark.parametrize(("seeds", "problems"), [(5, 64), (1, 64), (3, 20), (10, 1024)])
def test_a_single_right_rollout_hardly_moves_the_bound_of_none(seeds: int, problems: int) -> None:
    """The variance of one that is right says nothing of those that were not seen."""
    table = np.zeros((seeds, problems))
    none = share_interval(table).high
    for right in (1e-9, 1 / 64, 1 / 16):
        table[0, 0] = right
        assert none <= share_interval(table).high < 1.05 * none

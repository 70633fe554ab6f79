import math

import numpy as np
import pytest

from e3rl.statistics.interval import Estimate
from e3rl.statistics.means import (
    difference_of_units,
    difference_over_seeds_and_problems,
    interval_of_another_set,
    limit_by_seeds,
    mean_of_estimates,
    mean_over_seeds_and_problems,
    mean_over_sets,
    mean_over_units,
)


def bounds(estimate):
    interval = estimate.interval()
    return interval.low, interval.high


def test_a_mean_of_units_has_students_interval():
    # 1, 2, 3, 4: s² = 5/3, s/√4 = .6455, t of three degrees 3.1824.
    found = mean_over_units([1.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.df) == (2.5, 3)
    assert bounds(found) == pytest.approx((2.5 - 2.0543, 2.5 + 2.0543), abs=1e-4)
    assert found.p_value == pytest.approx(0.0305, abs=1e-4)


def test_sets_that_lie_apart_count_by_their_own_spread():
    """One problem. Means 1, 2, 3, 4 of two seeds each, a tenth of a point apart: s² = 5/3 of the
    sets, of their luck .005/2. t of three degrees is 3.1824, √(1 + 1/4) = 1.1180."""
    sets = [[[mean - 0.05], [mean + 0.05]] for mean in (1.0, 2.0, 3.0, 4.0)]
    found = mean_over_sets(sets)
    assert (found.mean, found.df) == (2.5, pytest.approx(3))
    assert found.standard_error == pytest.approx(math.sqrt(5 / 3 / 4))
    further = interval_of_another_set(sets)
    assert (further.low, further.high) == pytest.approx((2.5 - 4.5934, 2.5 + 4.5934), abs=1e-4)


def test_sets_closer_together_than_the_luck_of_their_seeds_count_by_that_luck():
    """Means of 2 from 1 and 3 and from 0 and 4: the sets do not differ, their luck is 2/2 and 8/2,
    the mean's variance (1 + 4)/4, with the one degree of freedom of two sets, not 25/(1 + 16)."""
    sets = [[[1.0], [3.0]], [[0.0], [4.0]]]
    found = mean_over_sets(sets)
    assert (found.mean, found.standard_error) == (2.0, pytest.approx(math.sqrt(5) / 2))
    assert found.df == 1
    further = interval_of_another_set(sets)
    assert further.high - 2 == pytest.approx(math.sqrt(3) * (found.interval().high - 2))


@pytest.mark.parametrize(("spread", "least", "most"), [(0.0, 0.95, 0.99), (0.02, 0.93, 0.97)])
def test_intervals_over_sets_of_unlike_sizes_hold_the_truth(spread, least, most):
    """Ten sets of 5 to 10 seeds that differ by 2.5 points, on 64 problems that all sets share. Sets
    that differ by the luck of their seeds alone have intervals that hold it a little too often."""
    rng, sizes, n = np.random.default_rng(0), (10, 5, 10, 6, 6, 10, 10, 10, 6, 8), 1500
    held = further_held = 0
    for _ in range(n):
        problems = rng.normal(scale=0.15, size=64)

        def draw(size, problems=problems):
            by_seed = rng.normal(scale=spread) + rng.normal(scale=0.025, size=(size, 1))
            return problems + by_seed + rng.normal(scale=0.2, size=(size, 64))

        sets = [draw(size) for size in sizes]
        found, further = mean_over_sets(sets).interval(), interval_of_another_set(sets)
        held += found.low <= 0 <= found.high
        further_held += further.low <= draw(8).mean() <= further.high
    assert least <= held / n <= most
    assert least <= further_held / n <= most


def test_a_two_way_table_worked_by_hand():
    # Row means 1 and 4, column means 1 and 4, rest ±.5: MSₐ = MS_b = 9, MSₑ = 1, of 4 cells.
    found = mean_over_seeds_and_problems([[0.0, 2.0], [2.0, 6.0]])
    assert found.mean == 2.5
    assert found.standard_error == pytest.approx(math.sqrt((9 + 9 - 1) / 4))
    assert found.df == pytest.approx((17 / 4) ** 2 / ((9 / 4) ** 2 * 2 + (1 / 4) ** 2))


@pytest.mark.parametrize("scale", [1.0, 0.1])  # tenths tie up to rounding
def test_seeds_that_tie_by_chance_leave_the_noise_of_single_values(scale):
    """Two seeds solve one of two problems each, another one: seeds and problems have equal means,
    the rest is ±1/2, MSₑ = 1 of one degree, and the mean's variance 1/4, not 0. t = 1, p = 1/2."""
    table = scale * np.array([[1.0, 0.0], [0.0, 1.0]])
    found = mean_over_seeds_and_problems(table)
    assert (found.mean, found.standard_error) == pytest.approx((scale / 2, scale / 2))
    assert (found.df, found.p_value) == pytest.approx((1, 0.5))
    apart = difference_over_seeds_and_problems(table, np.zeros((3, 2)))  # no pairs
    assert (apart.standard_error, apart.df) == pytest.approx((scale / 2, 1))
    alike = mean_over_seeds_and_problems(np.full((2, 2), scale))
    assert (alike.standard_error, alike.p_value) == (0.0, 0.0)


def test_where_seeds_or_problems_make_the_variance_it_is_their_own_t():
    rng = np.random.default_rng(0)
    seeds, problems = rng.normal(size=(5, 1)), rng.normal(size=(1, 40))
    by_seed = mean_over_seeds_and_problems(seeds + 1e-6 * rng.normal(size=(5, 40)))
    assert (by_seed.standard_error, by_seed.df) == pytest.approx(
        (seeds.std(ddof=1) / math.sqrt(5), 4), rel=1e-4
    )
    by_problem = mean_over_seeds_and_problems(problems + 1e-6 * rng.normal(size=(5, 40)))
    assert (by_problem.standard_error, by_problem.df) == pytest.approx(
        (problems.std(ddof=1) / math.sqrt(40), 39), rel=1e-4
    )


def test_one_seed_is_over_problems_and_one_cell_tells_nothing():
    assert mean_over_seeds_and_problems([[1.0, 2.0, 4.0]]) == mean_over_units([1.0, 2.0, 4.0])
    alone = mean_over_seeds_and_problems([[0.5]])
    assert alone.mean == 0.5
    assert np.isnan([*bounds(alone), alone.p_value]).all()


def test_paired_seeds_cancel_what_both_methods_share():
    rng = np.random.default_rng(8)
    luck = rng.normal(size=(10, 1))
    a, b = luck + rng.random((10, 40)), luck + rng.random((10, 40))
    paired = difference_over_seeds_and_problems(a, b, paired_seeds=True)
    assert paired == mean_over_seeds_and_problems(a - b)
    assert paired.standard_error < 0.5 * difference_over_seeds_and_problems(a, b).standard_error


def test_seeds_that_are_no_pairs_count_for_each_method_and_problems_for_both():
    rng = np.random.default_rng(7)
    difficulty, gain = 3 * rng.normal(size=(1, 300)), rng.normal(size=(1, 300))
    luck_a, luck_b = rng.normal(size=(40, 1)), 2 * rng.normal(size=(30, 1))
    found = difference_over_seeds_and_problems(luck_a + difficulty + gain, luck_b + difficulty)
    variance = [luck_a.var(ddof=1) / 40, luck_b.var(ddof=1) / 30, gain.var(ddof=1) / 300]
    assert found.standard_error == pytest.approx(math.sqrt(sum(variance)))
    spread = sum(v**2 / df for v, df in zip(variance, (39, 29, 299), strict=True))
    assert found.df == pytest.approx(sum(variance) ** 2 / spread)


def test_a_method_with_one_seed_is_compared_over_problems_alone():
    a, b = np.array([[1.0, 2.0, 4.0]]), np.array([[0.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    assert difference_over_seeds_and_problems(a, b) == mean_over_units([0.0, 1.0, 3.0])


def test_units_that_are_no_pairs_have_welchs_test():
    # Variances 1/3 and 4/3: df = (5/3)² / ((1/9 + 16/9) / 2).
    found = difference_of_units([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], paired=False)
    assert (found.mean, found.standard_error) == pytest.approx((-2.0, math.sqrt(5 / 3)))
    assert found.df == pytest.approx((25 / 9) / (17 / 18))
    assert difference_of_units([1.0, 3.0], [0.0, 0.0], paired=True) == mean_over_units([1.0, 3.0])


def test_independent_means_average_with_their_errors():
    parts = [Estimate(1.0, 3.0, 5), Estimate(2.0, 4.0, 10)]
    found = mean_of_estimates(parts)
    assert (found.mean, found.standard_error) == (1.5, 2.5)
    assert found.df == pytest.approx(2.5**4 / ((9 / 4) ** 2 / 5 + (16 / 4) ** 2 / 10))


def test_a_test_of_fewer_than_five_seeds_has_the_degrees_of_the_seeds_alone():
    found = Estimate(6.0, 1.0, 40.0)
    assert limit_by_seeds(found, 3).df == 2
    assert limit_by_seeds(found, 3).p_value == pytest.approx(0.0267, abs=1e-4)
    assert limit_by_seeds(found, 4).df == 3
    assert limit_by_seeds(found, 5) == limit_by_seeds(found, 1) == found
    assert limit_by_seeds(Estimate(6.0, 1.0, 1.2), 3).df == 1.2


def test_the_tails_of_problems_cost_a_skewed_mean_degrees_of_freedom():
    """Two of twenty right: the fourth moment of a share of .1 is 1/.09 - 3 times the normal's
    excess, in which 3 stands, and enters as the mean of 20."""
    found = mean_over_seeds_and_problems([[1.0, 1.0] + [0.0] * 18], skewed=True)
    assert found.df == pytest.approx(2 / (2 / 19 + (1 / 0.09 - 6) / 20))


def test_equal_tables_have_equal_intervals_to_the_last_digit():
    table = np.random.default_rng(0).random((5, 64))
    shuffled = table[::-1].copy()
    assert bounds(mean_over_seeds_and_problems(np.asfortranarray(table))) == bounds(
        mean_over_seeds_and_problems(table)
    )
    assert bounds(mean_over_seeds_and_problems(shuffled)) == pytest.approx(
        bounds(mean_over_seeds_and_problems(table)), rel=1e-12
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_over_units([]), r"\(P,\) values, got \(0,\)"),
        (lambda: mean_over_units([1.0, float("nan")]), "1 of 2 values are NaN"),
        (lambda: mean_over_seeds_and_problems([1.0]), r"\(seeds, problems\) table"),
        (
            lambda: difference_over_seeds_and_problems(np.ones((3, 4)), np.ones((3, 5))),
            "the same problems",
        ),
        (
            lambda: difference_over_seeds_and_problems(np.ones((3, 4)), np.ones((2, 4)), True),
            "the same seeds to pair them",
        ),
        (lambda: difference_of_units([1.0], [1.0, 2.0], True), "equally many units"),
        (lambda: mean_of_estimates([]), "at least one"),
        (lambda: mean_over_sets([np.ones((3, 4))]), r"two or more .* got \[\(3, 4\)\]"),
        (lambda: mean_over_sets([np.ones((3, 4)), np.ones((1, 4))]), "two or more seeds each"),
        (lambda: mean_over_sets([np.ones((3, 4)), np.ones((3, 5))]), "on the same problems"),
    ],
)
def test_senseless_tables_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

import math

import numpy as np
import pytest

from e3rl.statistics.crossing import crossing_interval, crossing_ratio, first_crossing
from e3rl.statistics.shares import share_interval

POINTS = np.linspace(0.0, 4.0, 401)


def straight(slopes: np.ndarray) -> np.ndarray:
    """(1, X, P) curves of one seed, a line through 0 for each problem."""
    return (POINTS[:, None] * slopes)[None]


def test_the_first_crossing_counts_and_may_never_come():
    points = np.array([0.0, 1.0, 2.0, 3.0])
    assert first_crossing(points, np.array([0.1, 0.5, 0.3, 0.6]), 0.4) == pytest.approx(0.75)
    assert first_crossing(points, np.array([0.4, 0.5, 0.5, 0.6]), 0.4) == 0.0
    assert math.isinf(first_crossing(points, np.array([0.1, 0.2, 0.2, 0.2]), 0.4))


def test_a_cost_is_uncertain_as_the_curve_is_there():
    # Lines c·s are at .25 at .25/s; at its bounds the curve's own interval ends at .25.
    slopes = np.array([0.1, 0.125, 0.15, 0.125] * 5)
    found = crossing_interval(POINTS, straight(slopes), 0.25)
    assert found.mean == pytest.approx(2.0)
    assert share_interval(found.low * slopes).high == pytest.approx(0.25, abs=1e-4)
    assert share_interval(found.high * slopes).low == pytest.approx(0.25, abs=1e-4)


def test_a_bound_beyond_the_last_cost_is_infinite():
    found = crossing_interval(POINTS, straight(np.array([0.05, 0.07, 0.075] * 2)), 0.25)
    assert found.mean == pytest.approx(0.25 / 0.065, rel=1e-6)
    assert found.low < found.mean
    assert math.isinf(found.high)


COSTS = np.linspace(0.0, 2.0, 201)


@pytest.mark.parametrize(
    ("start", "slope", "weight"),
    [
        (0.3, 0.2, 0.5),  # half as steep as the control at .5
        (0.48, 0.02, 0.25),  # a twentieth, of which no more than a quarter is taken
    ],
)
def test_the_control_s_error_counts_as_much_as_the_curve_is_steeper(start, slope, weight):
    """Both are at .5 at a cost of 1, the control give or take .05 of its problems. The error .05 /
    sqrt 39 times the weight is, on the curve, that over its slope times the weight."""
    off = np.tile([-0.05, 0.05], 20)
    curve = np.repeat((start + slope * COSTS[:, None] + 0 * off)[None], 3, axis=0)
    control = np.repeat((0.1 + 0.4 * COSTS[:, None] + off)[None], 3, axis=0)
    found = crossing_ratio(COSTS, curve, control, 0.5, paired_seeds=True)
    assert found is not None
    reach = 2.022691 * 0.05 * weight / (slope * math.sqrt(39))
    assert found.interval.mean == pytest.approx(1)
    assert (found.interval.low, found.interval.high) == pytest.approx(
        (max(0, 1 - reach), 1 + reach), abs=2e-4
    )


def test_p_of_a_ratio_of_three_seeds_has_their_two_degrees_of_freedom():
    """Slopes .6 and .8 in turn less .5: .1 and .3, a mean of .2 with an error of .1 / sqrt 39; at
    two degrees |t| > x is as likely as 1 - x / sqrt(2 + x²)."""
    slopes = np.tile([0.6, 0.8], 20)
    curve = np.repeat((COSTS[:, None] * slopes)[None], 3, axis=0)
    control = np.repeat((COSTS[:, None] * np.full(40, 0.5))[None], 3, axis=0)
    found = crossing_ratio(COSTS, curve, control, 0.5, paired_seeds=True)
    assert found is not None
    assert found.p_value == pytest.approx(1 - math.sqrt(156 / 158), rel=1e-3)


def test_a_ratio_pairs_problems():
    # Every problem's slope is a quarter steeper: the ratio is .8, however problems differ.
    slopes = np.array([0.3, 0.5, 0.7, 0.5])
    several = np.repeat(straight(slopes), 5, axis=0)  # seeds that are alike
    found = crossing_ratio(POINTS, 1.25 * several, several, 1.0)
    assert found is not None
    ends = (found.interval.mean, found.interval.low, found.interval.high)
    assert ends == pytest.approx((0.8, 0.8, 0.8), abs=5e-3)
    assert found.p_value < 0.01
    same = crossing_ratio(POINTS, straight(slopes), straight(slopes), 1.0)
    assert same is not None
    assert same.interval.mean == pytest.approx(1.0)


def test_a_control_that_is_never_there_or_from_the_start_gives_no_ratio():
    slow, fast = straight(np.array([0.1, 0.2] * 4)), straight(np.array([0.5, 0.6] * 4))
    assert crossing_ratio(POINTS, fast, slow, 1.0) is None
    assert crossing_ratio(POINTS, fast, fast, 0.0) is None
    never = crossing_ratio(POINTS, slow, fast, 1.0)
    assert never is not None
    assert math.isinf(never.interval.mean)
    assert never.interval.low > 1


def test_one_seed_of_one_problem_gives_a_ratio_without_bounds():
    curve = np.array([0.0, 0.5, 1.0]).reshape(1, 3, 1)
    found = crossing_ratio([0.0, 1.0, 2.0], curve, np.sqrt(curve), 0.5)
    # The control is at .5 after a share of .5 / .707 of the first step.
    assert found.interval.mean == pytest.approx(np.sqrt(0.5) / 0.5)
    assert np.isnan([found.interval.low, found.interval.high, found.p_value]).all()


def test_one_seed_beside_several_of_one_problem_has_no_bounds_either():
    curve = np.array([0.0, 0.5, 1.0]).reshape(1, 3, 1)
    several = np.concatenate([0.8 * curve, curve, curve])
    for one, other in ((curve, several), (several, curve)):
        found = crossing_ratio([0.0, 1.0, 2.0], one, other, 0.5)
        assert found.interval.mean > 0
        assert np.isnan([found.interval.low, found.interval.high, found.p_value]).all()


def test_one_seed_has_an_interval_over_problems_and_no_p():
    slopes = 1 + np.linspace(-0.2, 0.2, 40)
    found = crossing_ratio(POINTS, straight(1.5 * slopes), straight(slopes), 0.5)
    assert found.interval.low < found.interval.mean < found.interval.high < 1
    assert np.isnan(found.p_value)


def test_curves_that_do_not_fit_their_points_are_refused():
    with pytest.raises(ValueError, match="must be"):
        crossing_interval([0.0, 1.0], np.ones((2, 3, 4)), 0.5)

"""At which cost a rising curve first reaches a target, and how many times another curve's cost.

Curves are mean shares over seeds and problems at the X points of a cost axis, linear between them.
A cost c cannot be told from the one where the curve is at the target as long as the curve's
interval at c (`shares`) holds the target; all such costs are the interval, as Fieller (1954, JRSS
B 16) inverts a test for a ratio. Where a bound is never at the target that cost is infinite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import difference_over_seeds_and_problems, limit_by_seeds
from e3rl.statistics.shares import share_interval

Reals = NDArray[np.float64]
STEEPER = 4.0  # most that one curve is taken to be steeper than the other, by relative cost


@dataclass(frozen=True)
class CostRatio:
    """A ratio of costs with its interval, and the two-sided p of a ratio of 1, NaN where a side has
    one seed: problems alone do not tell methods apart."""

    interval: Interval
    p_value: float


def first_crossing(points: Reals, curve: Reals, target: float) -> float:
    """Smallest cost at which a curve (X,) is at the target, infinite where it never is."""
    reached = curve >= target
    if not reached.any():
        return math.inf
    at = int(reached.argmax())
    if at == 0:
        return float(points[0])
    share = (target - curve[at - 1]) / (curve[at] - curve[at - 1])
    return float(points[at - 1] + share * (points[at] - points[at - 1]))


def crossing_interval(
    points: ArrayLike, values: ArrayLike, target: float, level: float = 0.95
) -> Interval:
    """Where the mean of curves (S, X, P) first reaches the target; see the module.

    NaN bounds where a single seed saw a single problem.
    """
    (found,) = crossing_intervals(points, values, [target], level)
    return found


def crossing_intervals(
    points: ArrayLike, values: ArrayLike, targets: Sequence[float], level: float = 0.95
) -> list[Interval]:
    """`crossing_interval` of each target."""
    x, table = _curves(points, values)
    if table.shape[0] == table.shape[2] == 1:
        costs = [first_crossing(x, table[0, :, 0], target) for target in targets]
        return [Interval(cost, math.nan, math.nan, level) for cost in costs]
    bounds = [share_interval(table[:, i], level) for i in range(len(x))]
    return [_inverted(x, bounds, target) for target in targets]


def crossing_ratio(
    points: ArrayLike,
    values: ArrayLike,
    control: ArrayLike,
    target: float,
    level: float = 0.95,
    paired_seeds: bool = False,
) -> CostRatio | None:
    """Cost at which curves (S, X, P) reach the target, over that of a control's (S', X, P).

    At the cost r·c, for the control's cost c and a trial ratio r, the curve's distance from the
    target has the error of a paired difference: its own less w times the control's at c, where w
    is how much steeper the curve is at the target than the control's, by relative cost.

    None where the control never reaches the target, or is there at a cost of 0.
    """
    x, table = _curves(points, values)
    _, other = _curves(points, control)
    mean, base = table.mean(axis=(0, 2)), other.mean(axis=(0, 2))
    cost, base_cost = first_crossing(x, mean, target), first_crossing(x, base, target)
    if math.isinf(base_cost) or base_cost == 0:
        return None
    weight = (
        _steepness(x, mean, cost) / _steepness(x, base, base_cost) if 0 < cost < math.inf else 1.0
    )
    weight = min(max(weight, 1 / STEEPER), STEEPER)
    there = weight * (_at(x, other, base_cost) - target)

    def distance(at: Reals) -> Estimate:
        return difference_over_seeds_and_problems(at - target, there, paired_seeds)

    if min(len(table), len(other)) == table.shape[2] == 1:  # nothing is known of other ones
        return CostRatio(Interval(cost / base_cost, math.nan, math.nan, level), math.nan)
    costs = _inverted(x, [distance(table[:, i]).interval(level) for i in range(len(x))], 0.0)
    ratio = Interval(cost / base_cost, costs.low / base_cost, costs.high / base_cost, level)
    seeds = min(len(table), len(other))
    if seeds == 1:
        return CostRatio(ratio, math.nan)
    return CostRatio(ratio, limit_by_seeds(distance(_at(x, table, base_cost)), seeds).p_value)


def _inverted(x: Reals, curve: list[Interval], target: float) -> Interval:
    """Where a curve and the upper and lower bounds of it first are at the target."""
    mean, low, high = (
        first_crossing(x, np.array([getattr(each, end) for each in curve]), target)
        for end in ("mean", "high", "low")
    )
    return Interval(mean, low, high, curve[0].level)


def _at(x: Reals, values: Reals, cost: float) -> Reals:
    """(S, P) values of curves (S, X, P) at a cost."""
    right = min(max(int(np.searchsorted(x, cost)), 1), len(x) - 1)
    share = (cost - x[right - 1]) / (x[right] - x[right - 1])
    mixed: Reals = (1 - share) * values[:, right - 1] + share * values[:, right]
    return mixed


def _steepness(x: Reals, curve: Reals, cost: float) -> float:
    """Rise of a curve (X,) per relative rise of its cost, where it first reaches what it has."""
    right = min(max(int(np.searchsorted(x, cost)), 1), len(x) - 1)
    rise = float((curve[right] - curve[right - 1]) / (x[right] - x[right - 1]))
    return max(rise, 1e-12) * cost


def _curves(points: ArrayLike, values: ArrayLike) -> tuple[Reals, Reals]:
    x, table = np.asarray(points, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if table.ndim != 3 or table.shape[1] != len(x) or len(x) < 2:
        raise ValueError(f"curves {table.shape} must be (seeds, {len(x)} points, problems)")
    return x, table

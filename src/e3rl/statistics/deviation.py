"""How much values differ: standard deviations with intervals, and the ratio of two paired ones."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Interval
from e3rl.statistics.power import error_range
from e3rl.statistics.student import t_bound, t_p_value

ROUNDING = 1e-12
FEWEST_PAIRS = 3  # of a ratio: with two their correlation is ±1


@dataclass(frozen=True)
class DeviationRatio:
    """The ratio of two standard deviations with its interval, and the p of a ratio of 1."""

    interval: Interval
    p_value: float


def deviation_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The standard deviation of (n,) normal values: s·√((n-1)/χ²) at the quantiles of χ² with n - 1
    degrees of freedom.

    Raises ValueError for fewer than two values.
    """
    found = _vector("values", values, 2)
    low, high = error_range(len(found) - 1, level)
    deviation = float(found.std(ddof=1))
    return Interval(deviation, deviation * low, deviation * high, level)


def ratio_of_deviations(first: ArrayLike, second: ArrayLike, level: float = 0.95) -> DeviationRatio:
    """How many times as much one measurement spreads as another of the same n units.

        t = (F - 1)·√(n - 2)/(2·√(F·(1 - r²))),   F = s₁²/s₂²,   n - 2 degrees of freedom
        F·(K ± √(K² - 1)),   K = 1 + 2·(1 - r²)·b²/(n - 2)

    with r the correlation of the pairs and b the bound of |t| at the level. F and the interval are
    of variances, and their square roots are returned: exact for pairs that are normal together
    (Pitman 1939, Morgan 1939, Biometrika 31). Values with heavier tails than the normal's make the
    interval too narrow.

    Args:
        first: (n,) values.
        second: (n,) values of the same units, in the same order.
        level: coverage of the interval.

    Raises:
        ValueError: fewer than three pairs, other lengths, or values that are all equal.
    """
    mine, its = (
        _vector(name, x, FEWEST_PAIRS) for name, x in (("first", first), ("second", second))
    )
    if len(mine) != len(its):
        raise ValueError(f"{len(mine)} values of one and {len(its)} of the other: give pairs")
    one, other = (float(x.std(ddof=1)) for x in (mine, its))
    if not (differ(mine) and differ(its)):
        raise ValueError(f"standard deviations {one:g} and {other:g}: equal values have no ratio")
    df, ratio = len(mine) - 2, (one / other) ** 2
    rest = max(0.0, 1 - float(np.corrcoef(mine, its)[0, 1]) ** 2)
    k = 1 + 2 * rest * t_bound(level, df) ** 2 / df
    wide = k + math.sqrt(k * k - 1)
    interval = Interval(math.sqrt(ratio), math.sqrt(ratio / wide), math.sqrt(ratio * wide), level)
    t = (ratio - 1) * math.sqrt(df)
    t = t / (2 * math.sqrt(ratio * rest)) if rest > 0 else math.copysign(math.inf, t) if t else 0.0
    return DeviationRatio(interval, t_p_value(t, df))


def differ(values: ArrayLike) -> bool:
    """Whether values are not all alike, but for rounding."""
    return float(np.ptp(np.asarray(values, dtype=np.float64))) > ROUNDING


def _vector(name: str, values: ArrayLike, fewest: int) -> NDArray[np.float64]:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size < fewest:
        raise ValueError(f"{name} of shape {found.shape}: give {fewest} numbers or more")
    return found

"""Intervals of shares (pass@k, maj@k, accuracies), which stay honest at 0 and at 1.

The bootstrap over problems knows only the problems it saw: where all of them are solved never, or
always, every replicate is equal and its interval has no width. Problems are independent and each
one's share lies in [0, 1], so a mean m over P of them varies by at most m(1-m)/P, as if every
problem had one rollout; further rollouts of the same problem cannot show another problem. Where
fewer than `ENOUGH` problems tell of one side, an interval is therefore widened to Wilson's (1927,
JASA 22) with P as the effective sample size: 0 of 64 problems is [0, 5.7] %, 0 of one problem
[0, 79] %, with however many rollouts.

The difference of two shares has the same defect where it is 0 for all problems, or 1, or -1. By
what P problems showed, a share of 1 - (α/2)^(1/P) of problems may do otherwise, by anything from
-1 to 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.bootstrap import (
    Interval,
    cluster_bootstrap_columns,
    hierarchical_bootstrap,
    mean_of_sets,
)

ENOUGH = 10  # problems above 0, and problems below 1, of which the bootstrap learns enough
ROUNDING = 1e-12

Reals = NDArray[np.float64]


def wilson_interval(mean: float, n: float, level: float = 0.95) -> Interval:
    """Wilson's interval of a share seen in n independent trials; n may be an effective number.

        (m + z²/2n ± z √(m(1-m)/n + z²/4n²)) / (1 + z²/n)

    Raises ValueError for a share outside [0, 1] or n of 0 or less.
    """
    if not 0 <= mean <= 1 or not n > 0:
        raise ValueError(f"a share of {mean} in {n}: it must lie in [0, 1], and n be above 0")
    z = NormalDist().inv_cdf((1 + level) / 2)
    middle, half = mean + z * z / (2 * n), z * math.sqrt(mean * (1 - mean) / n + (z / n / 2) ** 2)
    low, high = ((middle + side) / (1 + z * z / n) for side in (-half, half))
    return Interval(mean, 0.0 if mean == 0 else low, 1.0 if mean == 1 else high, level)


def share_intervals(values: ArrayLike, level: float = 0.95) -> list[Interval]:
    """Intervals of the means of K shares (P, K), one row per problem; see the module.

    Raises ValueError as `cluster_bootstrap`, and for values outside [0, 1].
    """
    table = _shares(values)
    intervals = cluster_bootstrap_columns(table, level)
    return [_widened(each, column) for each, column in zip(intervals, table.T, strict=True)]


def share_interval(scores: ArrayLike, level: float = 0.95) -> Interval:
    """Interval of the mean of shares (S, P) over seeds and problems, or (P,) over problems.

    With several seeds these are resampled too (`hierarchical_bootstrap`).
    Raises ValueError as `share_intervals`.
    """
    table = _shares(np.atleast_2d(np.asarray(scores, dtype=np.float64)))
    if len(table) == 1:
        return share_intervals(table.T, level)[0]
    return _widened(hierarchical_bootstrap(table, level), table.mean(axis=0))


def share_intervals_of_sets(tables: Sequence[ArrayLike], level: float = 0.95) -> list[Interval]:
    """Intervals of K shares' means over sets, each set (P, K) counting once (`mean_of_sets`).

    Where a set by itself is widened, so is the mean: the distances of the sets' bounds from their
    means add up as standard errors do (Zou & Donner 2008, Statistics in Medicine 27).
    Raises ValueError as `mean_of_sets` and `share_intervals`.
    """
    return _of_sets([_shares(table) for table in tables], level, _widened)


def difference_intervals(differences: ArrayLike, level: float = 0.95) -> list[Interval]:
    """Intervals of the means of K differences of shares (P, K), paired by problem; see the module.

    Raises ValueError as `cluster_bootstrap`.
    """
    table = np.asarray(differences, dtype=np.float64)
    intervals = cluster_bootstrap_columns(table, level)
    return [widen_difference(each, column) for each, column in zip(intervals, table.T, strict=True)]


def difference_intervals_of_sets(
    tables: Sequence[ArrayLike], level: float = 0.95
) -> list[Interval]:
    """`share_intervals_of_sets` for differences of shares, (P, K) of each set."""
    return _of_sets([np.asarray(t, dtype=np.float64) for t in tables], level, widen_difference)


def widen_difference(interval: Interval, differences: ArrayLike) -> Interval:
    """The interval of the mean of (P,) differences of shares, widened where all are -1, 0 or 1."""
    values = np.asarray(differences, dtype=np.float64)
    if np.ptp(values) > ROUNDING or abs(values[0] - round(values[0])) > ROUNDING:
        return interval
    unseen = 1 - ((1 - interval.level) / 2) ** (1 / len(values))
    known = (1 - unseen) * interval.mean
    return _hull(interval, replace(interval, low=known - unseen, high=known + unseen))


def _of_sets(
    tables: Sequence[Reals], level: float, widen: Callable[[Interval, Reals], Interval]
) -> list[Interval]:
    found = []
    bootstraps = [cluster_bootstrap_columns(table, level) for table in tables]
    for k, interval in enumerate(mean_of_sets(tables, level)):
        plain = [intervals[k] for intervals in bootstraps]
        parts = [widen(each, table[:, k]) for each, table in zip(plain, tables, strict=True)]
        found.append(interval if parts == plain else _hull(interval, _combined(interval, parts)))
    return found


def _widened(interval: Interval, values: Reals) -> Interval:
    """The interval of the mean of one value per problem, widened where these tell too little."""
    if min((values > ROUNDING).sum(), (values < 1 - ROUNDING).sum()) >= ENOUGH:
        return interval
    mean = min(max(interval.mean, 0.0), 1.0)  # of rounding
    return _hull(interval, wilson_interval(mean, len(values), interval.level))


def _combined(interval: Interval, parts: Sequence[Interval]) -> Interval:
    below = math.hypot(*(part.mean - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.mean for part in parts)) / len(parts)
    return replace(interval, low=interval.mean - below, high=interval.mean + above)


def _hull(one: Interval, other: Interval) -> Interval:
    """The smallest interval that holds both; bounds that are not known (NaN) do not count."""
    low, high = float(np.fmin(one.low, other.low)), float(np.fmax(one.high, other.high))
    return replace(one, low=low, high=high)


def _shares(values: ArrayLike) -> Reals:
    table = np.asarray(values, dtype=np.float64)
    outside = table[(table < -ROUNDING) | (table > 1 + ROUNDING)]
    if outside.size:
        raise ValueError(f"shares lie in [0, 1], got {outside[:4].tolist()}")
    return table

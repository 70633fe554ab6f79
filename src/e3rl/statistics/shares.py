"""Intervals of shares (pass@k, maj@k, accuracies), which stay honest at 0 and at 1.

A share m with variance V is worth n = m(1-m)/V independent trials, and its interval is Wilson's
(1927, JASA 22) with this effective number, and with Student's t in place of the normal's z where V
is known with few degrees of freedom:

    (m + t²/2n ± t √(m(1-m)/n + t²/4n²)) / (1 + t²/n)

(Franco, Little, Louis & Slud 2019, Journal of Survey Statistics and Methodology 7, compare such
intervals.) It lies in [0, 1] and leans inwards, as the truth does. V is that of `means`.

Where fewer than `ENOUGH` problems tell of one side, V may miss what those would show that were not
seen: n is then at most the number P of problems, as if each had one rollout, since a mean of P
independent values in [0, 1] varies by at most m(1-m)/P; where that decides, so does the normal's z.
0 of 64 problems is [0, 5.7] %, 0 of one problem [0, 79] %, with however many rollouts.

Runs whose luck multiplies a small share, so that some find what most do not, are lopsided: few of
them do not show how far the luckiest get. Of the seeds' mean distances x from the nearer edge, the
logarithms then have a variance s² between seeds, and the mean of such an x has the upper bound

    exp(mean ln x + s²/2 + t √(s²/S + s⁴/2(S-1))),      t with S - 1 degrees of freedom

(Cox's, in Olsson 2005, Journal of Statistics Education 13). By as much as it is farther away than
Student's bound of the same runs, in squares, the interval's bound towards the middle moves out, by
less the nearer the share is to one half, where luck has no such side. Where problems make most of
the variance, s² is small and hardly anything moves.

A difference of two shares, paired by problem, has the same defect where problems are 0 (or 1, or
-1) but for a few. One problem is then added that only the first method solves, and one that only
the second does (Bonett & Price 2012, Journal of Educational and Behavioral Statistics 37).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import (
    difference_over_seeds_and_problems,
    mean_of_estimates,
    mean_over_seeds_and_problems,
)
from e3rl.statistics.power import variance_components
from e3rl.statistics.student import t_bound

ENOUGH = 10  # problems away from an edge, of which the variance is learnt
ROUNDING = 1e-12
UNSEEN = 0.25  # of a problem: how far from the edge a run is taken to be that is at it
FARTHEST = 50.0  # logarithm of a factor, beyond which a bound is at the other edge anyway

Reals = NDArray[np.float64]


def wilson_interval(mean: float, n: float, level: float = 0.95, df: float = math.inf) -> Interval:
    """Wilson's interval of a share seen in n independent trials; n may be an effective number.

    `df` are the degrees of freedom with which that number is known.

    Raises ValueError for a share outside [0, 1] or n of 0 or less.
    """
    if not 0 <= mean <= 1 or not n > 0:
        raise ValueError(f"a share of {mean} in {n}: it must lie in [0, 1], and n be above 0")
    t = NormalDist().inv_cdf((1 + level) / 2) if math.isinf(df) else t_bound(level, df)
    middle, half = mean + t * t / (2 * n), t * math.sqrt(mean * (1 - mean) / n + (t / n / 2) ** 2)
    low, high = ((middle + side) / (1 + t * t / n) for side in (-half, half))
    return Interval(mean, 0.0 if mean == 0 else low, 1.0 if mean == 1 else high, level)


def share_interval(scores: ArrayLike, level: float = 0.95) -> Interval:
    """Interval of the mean of shares (S, P) over seeds and problems, or (P,) over problems.

    Raises ValueError as `mean_over_seeds_and_problems`, and for values outside [0, 1].
    """
    table = _shares(np.atleast_2d(np.asarray(scores, dtype=np.float64)))
    found, by_problem = mean_over_seeds_and_problems(table, skewed=True), table.mean(axis=0)
    mean = min(max(found.mean, 0.0), 1.0)  # of rounding
    known = found.standard_error > ROUNDING  # False for NaN
    n, df = math.inf, math.inf
    if known:
        n, df = mean * (1 - mean) / found.standard_error**2, found.df
    few = min((by_problem > ROUNDING).sum(), (by_problem < 1 - ROUNDING).sum()) < ENOUGH
    if few and n > len(by_problem):
        n, df = len(by_problem), math.inf  # not by the variance that was seen, nor its few degrees
    interval = wilson_interval(mean, n, level, df)
    return interval if len(table) == 1 else _allow_for_lucky_runs(interval, table)


def share_intervals(values: ArrayLike, level: float = 0.95) -> list[Interval]:
    """Intervals of the means of K shares (P, K), one row per problem; see the module.

    Raises ValueError as `share_interval`.
    """
    return [share_interval(column, level) for column in _columns(values)]


def share_intervals_of_sets(tables: Sequence[ArrayLike], level: float = 0.95) -> list[Interval]:
    """Intervals of K shares' means over sets, each set (P, K) counting once.

    Sets are what was chosen to be reported, so only problems are drawn. The distances of the sets'
    bounds from their means add up as standard errors do (Zou & Donner 2008, Statistics in
    Medicine 27).

    Raises ValueError as `share_interval`, and for sets with other numbers of shares.
    """
    return [
        _combined([share_interval(column, level) for column in columns])
        for columns in zip(*_equally_many(tables), strict=True)
    ]


def difference_of_shares(
    a: ArrayLike, b: ArrayLike, paired_seeds: bool = False, largest: float = 1.0
) -> Estimate:
    """mean(a) - mean(b) of shares (S, P) and (S', P) on the same problems; see the module.

    No bound is beyond ±`largest`: 1 for shares, 2 where a and b are differences of shares.

    Raises ValueError as `difference_over_seeds_and_problems`.
    """
    first, second = (np.atleast_2d(np.asarray(each, dtype=np.float64)) for each in (a, b))
    found = difference_over_seeds_and_problems(first, second, paired_seeds)
    if not _tells_too_little(first.mean(axis=0) - second.mean(axis=0)):
        return replace(found, largest=largest)
    ones, zeros = (np.tile(edge, (max(len(first), len(second)), 1)) for edge in ([1, 0], [0, 1]))
    wider = difference_over_seeds_and_problems(
        np.hstack([first, ones[: len(first)]]),
        np.hstack([second, zeros[: len(second)]]),
        paired_seeds,
    )
    return replace(wider, mean=found.mean, center=wider.mean, largest=largest)


def gain_interval(after: ArrayLike, before: ArrayLike, level: float = 0.95) -> Interval:
    """What seeds (S, P) have gained over the policy that they share, seen anew by each (S, P).

    As `difference_of_shares`, paired; and since luck is the seeds' alone, and none of it is in what
    they started from, the bound towards the middle moves out by what lucky runs ask of the share
    `after` (see the module), times |1 - 2m|^(1/2) of its mean m: a factor that simulated coverage
    chose. No bound says that less than nothing, or more than everything, is solved after.

    Raises ValueError as `difference_of_shares`.
    """
    table = np.atleast_2d(np.asarray(after, dtype=np.float64))
    found = difference_of_shares(table, before, paired_seeds=True).interval(level)
    bounds = [found.low, found.high]
    if len(table) > 1:
        low, more = _reach_of_lucky_runs(table, level)
        more *= math.sqrt(abs(1 - 2 * float(table.mean())))
        sign, side = (1, 1) if low else (-1, 0)
        bounds[side] = found.mean + sign * math.hypot(bounds[side] - found.mean, more)
    least = found.mean - float(table.mean())  # nothing is solved after
    return replace(found, low=max(least, bounds[0]), high=min(least + 1, bounds[1]))


def differences_of_shares(differences: ArrayLike) -> list[Estimate]:
    """The means of K differences of shares (P, K), paired by problem; see the module."""
    return [_mean_difference(column) for column in _columns(differences)]


def differences_of_sets(tables: Sequence[ArrayLike]) -> list[Estimate]:
    """`differences_of_shares` averaged over sets, (P, K) of each, each set counting once."""
    return [
        mean_of_estimates([_mean_difference(column) for column in columns])
        for columns in zip(*_equally_many(tables), strict=True)
    ]


def _allow_for_lucky_runs(interval: Interval, table: Reals) -> Interval:
    """The bound towards the middle, farther out where runs' luck is lopsided; see the module."""
    low, more = _reach_of_lucky_runs(table, interval.level)
    if low:
        out = math.hypot(interval.high - interval.mean, more)
        return replace(interval, high=min(1.0, interval.mean + out))
    out = math.hypot(interval.mean - interval.low, more)
    return replace(interval, low=max(0.0, interval.mean - out))


def _reach_of_lucky_runs(table: Reals, level: float) -> tuple[bool, float]:
    """Whether the nearer edge is 0, and how much farther from it than Student's bound of the same
    runs the lognormal one is, in squares."""
    n_seeds, n_problems = table.shape
    low = float(table.mean()) <= 0.5
    x = np.maximum(table.mean(axis=1) if low else 1 - table.mean(axis=1), UNSEEN / n_problems)
    mean, noise = float(x.mean()), 0.0
    if n_problems > 1:
        noise = variance_components(table).residual / n_problems
    variance = max(0.0, float(x.var(ddof=1)) - noise)
    logs = max(0.0, float(np.log(x).var(ddof=1)) - noise / mean**2)
    t = t_bound(level, n_seeds - 1)
    reach = t * math.sqrt(logs / n_seeds + logs**2 / (2 * (n_seeds - 1)))
    upper = math.exp(min(FARTHEST, float(np.log(x).mean()) + logs / 2 + reach)) - mean
    farther = max(0.0, upper) ** 2 - t**2 * variance / n_seeds
    return low, math.sqrt(max(0.0, farther * (1 - 2 * min(mean, 0.5))))


def _mean_difference(column: Reals) -> Estimate:
    return difference_of_shares(column, np.zeros_like(column))


def _tells_too_little(by_problem: Reals) -> bool:
    """Whether most problems lie at one of -1, 0 and 1, and fewer than `ENOUGH` elsewhere."""
    at_edge = max(int((np.abs(by_problem - edge) <= ROUNDING).sum()) for edge in (-1, 0, 1))
    elsewhere = len(by_problem) - at_edge
    return elsewhere < min(ENOUGH, at_edge)


def _combined(parts: Sequence[Interval]) -> Interval:
    mean = sum(part.mean for part in parts) / len(parts)
    below = math.hypot(*(part.mean - part.low for part in parts)) / len(parts)
    above = math.hypot(*(part.high - part.mean for part in parts)) / len(parts)
    return Interval(mean, mean - below, mean + above, parts[0].level)


def _columns(values: ArrayLike) -> list[Reals]:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"give a filled (problems, statistics) table, got {table.shape}")
    return list(table.T)


def _equally_many(tables: Sequence[ArrayLike]) -> list[list[Reals]]:
    columns = [_columns(table) for table in tables]
    if len({len(each) for each in columns}) != 1:
        shapes = [np.shape(table) for table in tables]
        raise ValueError(f"sets need equally many statistics, got {shapes}")
    return columns


def _shares(values: ArrayLike) -> Reals:
    table = np.asarray(values, dtype=np.float64)
    outside = table[(table < -ROUNDING) | (table > 1 + ROUNDING)]
    if outside.size:
        raise ValueError(f"shares lie in [0, 1], got {outside[:4].tolist()}")
    return table

"""Interquartile mean of runs x tasks: a mean that single lucky or failed runs do not move."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import TIED
from e3rl.statistics.power import variance_components
from e3rl.statistics.student import t_bound

CUT = 0.25


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores of runs x tasks.

        IQM = mean of x₍c₎ .. x₍n-1-c₎,   c = ⌊n/4⌋,   x sorted, n scores

    (Agarwal et al., arXiv 2108.13264, section 4.3: a 25 % trimmed mean over the flattened table.)

    Raises ValueError for no scores, or NaN or infinite ones.
    """
    flat = np.sort(_scores(scores).ravel())
    cut = int(CUT * flat.size)
    return float(flat[cut : flat.size - cut].mean())


def estimate_iqm(scores: ArrayLike) -> Estimate:
    """`interquartile_mean` of (R, K) runs x tasks, with its standard error over runs.

    That of a trimmed mean is the one of winsorised scores over the share that is kept (Tukey &
    McLaughlin 1963, Sankhya A 25). A run's scores stand or fall together, so the runs' means of
    winsorised scores are the units, with one degree of freedom fewer than runs that the middle
    half is made of: 1/Σ gᵣ², for run r's share gᵣ of it. Tasks count as given. Where runs happen to
    tie, what they differ by in their single tasks stands in, as in `means`. NaN for one run.

    Raises ValueError as `interquartile_mean`.
    """
    table = _scores(scores)
    if table.ndim != 2:
        raise ValueError(f"estimate_iqm takes (runs, tasks) scores, got {table.shape}")
    mean, n_runs = interquartile_mean(table), len(table)
    if n_runs == 1:
        return Estimate(mean, math.nan, math.nan)
    cut = int(CUT * table.size)
    order = np.argsort(table, axis=None, kind="stable")
    low, high = table.flat[order[cut]], table.flat[order[-1 - cut]]
    winsorised = np.clip(table, low, high)
    by_run = winsorised.mean(axis=1) * table.size / (table.size - 2 * cut)
    kept = np.bincount(order[cut : table.size - cut] // table.shape[1], minlength=n_runs)
    runs = 1 / float(((kept / kept.sum()) ** 2).sum())
    variance = float(by_run.var(ddof=1)) / n_runs
    if variance <= TIED and table.shape[1] > 1:
        share_kept = 1 - 2 * cut / table.size
        variance = variance_components(winsorised).residual / table.size / share_kept**2
    return Estimate(mean, math.sqrt(variance), max(1.0, runs - 1))


def iqm_interval(scores: ArrayLike, level: float = 0.95) -> Interval:
    """`interquartile_mean` of (R, K) shares with Student's interval on the scale of logits.

    The bounds are those of logit(m) ± t·SE/(m(1-m)), for a mean m with `estimate_iqm`'s standard
    error. A mean of middle scores moves with them on any scale, so what is lopsided near 0 and 1,
    runs whose luck multiplies a share, is even on this one. It lies in [0, 1]. At 0 and 1, where
    there is no logit, bounds are Student's, cut to shares. NaN bounds for one run.

    Raises ValueError as `interquartile_mean`.
    """
    found = estimate_iqm(scores)
    plain, m = found.interval(level), found.mean
    if math.isnan(found.standard_error):
        return plain
    if not 0 < m < 1:
        return Interval(m, max(0.0, plain.low), min(1.0, plain.high), level)
    half = t_bound(level, found.df) * found.standard_error / (m * (1 - m))
    logit = math.log(m / (1 - m))
    return Interval(m, _share_of(logit - half), _share_of(logit + half), level)


def _share_of(logit: float) -> float:
    return (1 + math.tanh(logit / 2)) / 2


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(scores, dtype=np.float64)
    if table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"an interquartile mean needs finite scores, got {table.size} of which "
            f"{int((~np.isfinite(table)).sum())} are NaN or infinite; leave those runs out"
        )
    return table

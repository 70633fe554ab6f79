"""Interquartile mean of runs x tasks: a mean that single lucky or failed runs do not move."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate

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
    half is made of: 1/Σ gᵣ², for run r's share gᵣ of it. Tasks count as given. NaN for one run.

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
    by_run = np.clip(table, low, high).mean(axis=1) * table.size / (table.size - 2 * cut)
    kept = np.bincount(order[cut : table.size - cut] // table.shape[1], minlength=n_runs)
    runs = 1 / float(((kept / kept.sum()) ** 2).sum())
    error = math.sqrt(by_run.var(ddof=1) / n_runs)
    return Estimate(mean, error, max(1.0, runs - 1))


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(scores, dtype=np.float64)
    if table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"an interquartile mean needs finite scores, got {table.size} of which "
            f"{int((~np.isfinite(table)).sum())} are NaN or infinite; leave those runs out"
        )
    return table

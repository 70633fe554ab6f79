"""Interquartile mean of runs x tasks: a mean that single lucky or failed runs do not move."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.seeds import derive_seed
from e3rl.statistics.bootstrap import Interval, percentile_intervals

CUT = 0.25


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half of all scores of runs x tasks.

        IQM = mean of x₍c₎ .. x₍n-1-c₎,   c = ⌊n/4⌋,   x sorted, n scores

    (Agarwal et al., arXiv 2108.13264, section 4.3: a 25 % trimmed mean over the flattened table.)

    Raises ValueError for no scores, or NaN or infinite ones.
    """
    return float(_middle_means(_scores(scores).reshape(1, -1))[0])


def iqm_interval(
    scores: ArrayLike, level: float = 0.95, n_boot: int = 2000, seed: int = 0
) -> Interval:
    """`interquartile_mean` of (R, K) runs x tasks with its percentile interval over runs.

    Whole runs are drawn: one trained policy answers all tasks, so what it scores on them is not
    independent. (Agarwal et al. draw anew within each task, since there every pair of run and task
    is a training of its own.) With a single run the bounds are NaN.

    Raises ValueError as `interquartile_mean`, and for a level or n_boot out of range.
    """
    table = _scores(scores)
    if table.ndim != 2:
        raise ValueError(f"iqm_interval takes (runs, tasks) scores, got {table.shape}")
    if not 0 < level < 1 or n_boot < 1:
        raise ValueError(f"level={level} must lie in (0, 1) and n_boot={n_boot} be at least 1")
    rng = np.random.default_rng(derive_seed("bootstrap", seed))
    drawn = rng.integers(len(table), size=(n_boot, len(table)))
    replicates = np.concatenate(
        [_middle_means(table[rows].reshape(len(rows), -1)) for rows in np.array_split(drawn, 32)]
    )
    mean = np.array([interquartile_mean(table)])
    return percentile_intervals(mean, replicates[:, None], level, len(table))[0]


def _middle_means(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    cut = int(CUT * rows.shape[1])
    ordered = np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut]
    middle: NDArray[np.float64] = ordered.mean(axis=1)
    return middle


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(scores, dtype=np.float64)
    if table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"an interquartile mean needs finite scores, got {table.size} of which "
            f"{int((~np.isfinite(table)).sum())} are NaN or infinite; leave those runs out"
        )
    return table

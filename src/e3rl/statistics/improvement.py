"""How likely a run of one method beats a run of another, over tasks."""

import math
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import mean_of_estimates, mean_over_units
from e3rl.statistics.shares import wilson_interval


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """Probability that a random run of `a` scores higher than a random run of `b` on a random task.

        P(a > b) = 1/K Σₖ 1/(R·R') Σᵢⱼ ([aᵢₖ > bⱼₖ] + [aᵢₖ = bⱼₖ]/2)

    (Agarwal et al., arXiv 2108.13264, section 4.3; the inner sum is the Mann-Whitney U.) It says
    how often, not by how much.

    Args:
        a: (R, K) scores, runs x tasks.
        b: (R', K) scores of the other method on the same tasks.

    Raises:
        ValueError: tables of different tasks, no scores, or NaN or infinite ones.
    """
    return float(_wins(a, b).mean())


def improvement_interval(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, paired_runs: bool = False
) -> Interval:
    """`probability_of_improvement` with its interval over runs of both methods, tasks as given.

    A run's placement is the share of the other method's runs that it beats; the variance of the
    mean placements is that of the probability (DeLong, DeLong & Clarke-Pearson 1988, Biometrics
    44). The interval is Wilson's with the number of trials that this variance is worth, at least
    as many as a method has runs, for so small it is at most (van Dantzig 1951). The variance of R
    pairs counts R/(R-1) times: a run is placed among few others, one of them of its own pair.
    Without this they were less sure than they say (experiments/coverage).

    NaN bounds where a method has a single run.
    """
    wins = _wins(a, b)
    mean = float(wins.mean())
    if min(wins.shape) == 1:
        return Interval(mean, math.nan, math.nan, level)
    found = _placements(wins, paired_runs)
    n, df = float(min(wins.shape)), math.inf
    if found.standard_error > 0:
        n, df = max(n, mean * (1 - mean) / found.standard_error**2), found.df
    return wilson_interval(mean, n, level, df)


def _placements(wins: NDArray[np.float64], paired_runs: bool) -> Estimate:
    """The mean of the placements of both methods' runs; of pairs, their sums are the units."""
    mine, other = wins.mean(axis=1), wins.mean(axis=0)
    if paired_runs:
        found = mean_over_units(mine + other)
        few = math.sqrt(len(mine) / (len(mine) - 1))
        return replace(found, standard_error=few * found.standard_error)
    both = mean_of_estimates([mean_over_units(2 * mine), mean_over_units(2 * other)])
    return both


def _wins(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """(R, R') share of tasks that run i of `a` wins against run j of `b`, ties one half."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    fits = first.ndim == second.ndim == 2 and first.shape[1] == second.shape[1]
    if not fits or first.size == 0 or second.size == 0:
        raise ValueError(
            f"give (runs, tasks) scores on the same tasks, got {first.shape} and {second.shape}"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("some scores are NaN or infinite; leave those runs out")
    # Task by task, since runs x runs x problems may not fit into memory.
    wins = np.zeros((len(first), len(second)))
    for x, y in zip(first.T, second.T, strict=True):
        wins += (np.greater.outer(x, y) + 0.5 * np.equal.outer(x, y)) / first.shape[1]
    return wins

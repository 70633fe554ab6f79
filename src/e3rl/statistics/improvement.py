"""How likely a run of one method beats a run of another, over tasks.

    P(a > b) = 1/K Σₖ 1/(R·R') Σᵢⱼ ([aᵢₖ > bⱼₖ] + [aᵢₖ = bⱼₖ]/2)

(Agarwal et al., arXiv 2108.13264, section 4.3; the inner sum is the Mann-Whitney U.) It says how
often, not by how much.

**Its interval** is over runs of both methods, tasks as given. P is a mean of few wins and moves in
steps, of 1/25 with five runs each on one task, so a variance that is learnt from these wins alone
is poorly known. On one task, with runs that are no pairs, the variance is therefore that of a model
with the same P (Hanley & McNeil 1982, Radiology 143, with both sides alike):

    V(P) = P(1-P)/(R·R')·[1 + (N-1)·((1-P)/(2-P) + P/(1+P))],   N = (R+R')/2

and the interval holds every P for which (P - P̂)² ≤ t²·f·V(P) (Newcombe 2006, Statistics in
Medicine 25, method 5). f is what pairs of runs and several tasks leave of V: the variance of the
mean placements (DeLong, DeLong & Clarke-Pearson 1988, Biometrics 44; a run's placement is the share
of the other method's runs that it beats), by the tasks' mean of what it would be for each task
alone without pairs; and the tasks' mean of V(Pₖ) by V(P̂). The first factor is at least
1/(K·R·R'), for no more wins than that are counted, and is taken to the power √(V(P̂)/V(1/2)): near
0 and 1 the few wins, or losses, hardly tell how tasks and pairs hang together.

As f is known by the runs alone, t² = g·z² + (1-g)·t²(R-1), for g the first of the two factors, 1 at
most: one task without pairs has the normal's bound, tasks and pairs that leave little of V have
Student's, with one degree of freedom fewer than the smaller number of runs. How often such
intervals hold the truth is simulated in experiments/coverage.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Interval
from e3rl.statistics.student import t_bound

Reals = NDArray[np.float64]


def probability_of_improvement(a: ArrayLike, b: ArrayLike) -> float:
    """Probability that a random run of `a` scores higher than a random run of `b` on a random task.

    Args:
        a: (R, K) scores, runs x tasks.
        b: (R', K) scores of the other method on the same tasks.

    Raises:
        ValueError: tables of different tasks, no scores, or NaN or infinite ones.
    """
    first, second = _tables(a, b)
    return float(np.mean([_wins(*pair).mean() for pair in zip(first.T, second.T, strict=True)]))


def improvement_interval(
    a: ArrayLike, b: ArrayLike, level: float = 0.95, paired_runs: bool = False
) -> Interval:
    """`probability_of_improvement` with its interval; see the module.

    `paired_runs`: run i of `a` and run i of `b` have something in common, such as a seed. NaN
    bounds where a method has a single run.

    Raises ValueError as `probability_of_improvement`.
    """
    first, second = _tables(a, b)
    parts = [_wins(*pair) for pair in zip(first.T, second.T, strict=True)]
    means = [float(part.mean()) for part in parts]
    shape, mean = parts[0].shape, sum(means) / len(means)
    if min(shape) == 1:
        return Interval(mean, math.nan, math.nan, level)
    whole = _model_variance(mean, shape)
    left = _left_by_pairs_and_tasks(parts, paired_runs)
    left **= math.sqrt(whole / _model_variance(0.5, shape))
    normal, student = NormalDist().inv_cdf((1 + level) / 2), t_bound(level, min(shape) - 1)
    known = min(1.0, left)
    square = left * (known * normal**2 + (1 - known) * student**2)
    if whole > 0:
        square *= sum(_model_variance(each, shape) for each in means) / len(means) / whole
    low, high = (_score_bound(mean, square, shape, edge) for edge in (0.0, 1.0))
    return Interval(mean, low, high, level)


def _left_by_pairs_and_tasks(parts: Sequence[Reals], paired_runs: bool) -> float:
    """The first factor of the module's f, from the wins (R, R') of every task."""
    apart = float(np.mean([_placement_variance(part, False) for part in parts]))
    wins: Reals = np.mean(parts, axis=0)
    left = _placement_variance(wins, paired_runs) / apart if apart > 0 else 1.0
    return max(left, 1 / (wins.size * len(parts)))


def _model_variance(mean: float, shape: tuple[int, ...]) -> float:
    """V of the module, for so many runs of each method."""
    more = (shape[0] + shape[1]) / 2 - 1
    spread = 1 + more * ((1 - mean) / (2 - mean) + mean / (1 + mean))
    return mean * (1 - mean) / (shape[0] * shape[1]) * spread


def _score_bound(mean: float, square: float, shape: tuple[int, ...], edge: float) -> float:
    """The P farthest from the mean, towards an edge, with (P - mean)² ≤ square·V(P)."""
    inside, outside = mean, edge
    for _ in range(60):  # bisection
        middle = (inside + outside) / 2
        near = (middle - mean) ** 2 <= square * _model_variance(middle, shape)
        inside, outside = (middle, outside) if near else (inside, middle)
    return inside


def _placement_variance(wins: Reals, paired_runs: bool) -> float:
    """Variance of the mean placements of both methods' runs; of pairs, their sums are the units."""
    mine, other = wins.mean(axis=1), wins.mean(axis=0)
    if paired_runs:
        return float((mine + other).var(ddof=1)) / len(mine)
    return float(mine.var(ddof=1)) / len(mine) + float(other.var(ddof=1)) / len(other)


def _wins(a: Reals, b: Reals) -> Reals:
    """(R, R') whether run i of `a` wins against run j of `b` on one task, ties one half."""
    return np.greater.outer(a, b) + 0.5 * np.equal.outer(a, b)


def _tables(a: ArrayLike, b: ArrayLike) -> tuple[Reals, Reals]:
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    fits = first.ndim == second.ndim == 2 and first.shape[1] == second.shape[1]
    if not fits or first.size == 0 or second.size == 0:
        raise ValueError(
            f"give (runs, tasks) scores on the same tasks, got {first.shape} and {second.shape}"
        )
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("some scores are NaN or infinite; leave those runs out")
    return first, second

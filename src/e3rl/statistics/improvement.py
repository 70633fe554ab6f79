"""How likely a run of one method beats a run of another, over tasks."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.seeds import derive_seed
from e3rl.statistics.bootstrap import Interval, percentile_intervals


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
    a: ArrayLike, b: ArrayLike, level: float = 0.95, n_boot: int = 2000, seed: int = 0
) -> Interval:
    """`probability_of_improvement` with its percentile interval over whole runs of both methods.

    NaN bounds where a method has a single run.
    """
    wins = _wins(a, b)
    if not 0 < level < 1 or n_boot < 1:
        raise ValueError(f"level={level} must lie in (0, 1) and n_boot={n_boot} be at least 1")
    rng_a, rng_b = np.random.default_rng(derive_seed("bootstrap", seed)).spawn(2)
    first = rng_a.multinomial(len(wins), np.full(len(wins), 1 / len(wins)), size=n_boot)
    n_other = wins.shape[1]
    second = rng_b.multinomial(n_other, np.full(n_other, 1 / n_other), size=n_boot)
    replicates = ((first @ wins) * second).sum(axis=1, keepdims=True) / wins.size
    return percentile_intervals(np.array([wins.mean()]), replicates, level, min(wins.shape))[0]


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

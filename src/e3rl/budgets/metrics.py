"""Figures about an allocation and its ranks, shared by the budget rules (numpy only)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.budgets.history import VisitCounts
from e3rl.statistics.ranks import mid_ranks


def allocation_metrics(counts: NDArray[np.int64], n_min: int, n_max: int) -> dict[str, float]:
    """Bounds in force and the spread of the counts (B,) between them.

    `at_min` and `at_max` are shares of prompts at a bound (or beyond it, which only the published
    allocator's overshoot can be); both are 1 where the bounds coincide.
    """
    return {
        "n_min": float(n_min),
        "n_max": float(n_max),
        "std": float(counts.std()),
        "gini": gini(counts),
        "at_min": float((counts <= n_min).mean()),
        "at_max": float((counts >= n_max).mean()),
    }


def outcome_metrics(
    known: VisitCounts, visits: VisitCounts, prior: tuple[float, float]
) -> dict[str, float]:
    """What a step's visits say about what was believed before they were learnt.

    first_solved: prompts with a right rollout that had been seen before and never solved;
    brier: mean of (p̂ᵢ - rᵢⱼ)² over rollouts, p̂ the posterior mean; at best the mean p(1 - p);
    calibration_error: mean over rollouts of |mean p̂ - mean r| within tenths of p̂.
    """
    expected, total = known.posterior(prior).mean, visits.rollouts.sum()
    tenth = np.minimum((expected * 10).astype(np.int64), 9)
    gaps = np.bincount(tenth, visits.rollouts * expected - visits.rewards)
    wrong = visits.rollouts - visits.rewards
    squares = visits.rewards * (1 - expected) ** 2 + wrong * expected**2
    return {
        "first_solved": float((known.never_solved & (visits.rewards > 0)).sum()),
        "brier": float(squares.sum() / total),
        "calibration_error": float(np.abs(gaps).sum() / total),
    }


def gini(counts: ArrayLike) -> float:
    """Gini coefficient Σᵢ Σⱼ |nᵢ - nⱼ| / (2·B²·n̄): 0 = all equal, towards 1 = one takes all.

    Args:
        counts: (B,) >= 0, B >= 1, not all 0.
    """
    ascending = np.sort(np.asarray(counts, dtype=np.float64))
    n = ascending.size
    position = 2 * np.arange(1, n + 1) - n - 1
    return float((position * ascending).sum() / (n * ascending.sum()))


def spearman(first: ArrayLike, second: ArrayLike) -> float | None:
    """Rank correlation: Pearson's coefficient of the mid-ranks of both (B,) sequences.

    None where it is not defined: fewer than two entries, or one side all equal.
    """
    a, b = (mid_ranks(x) for x in (first, second))
    if a.size < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])

"""Figures about an allocation and its ranks, shared by the budget rules (numpy only)."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.budgets.history import RewardHistory
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
    history: RewardHistory,
    prior: tuple[float, float],
    prompt_ids: Sequence[str],
    rewards: Sequence[NDArray[np.float64]],
) -> dict[str, float]:
    """What a finished step says about the beliefs it was decided from; `history` lacks it still.

    first_solved: prompts with a right rollout that had been seen before and never solved;
    brier: mean of (p̂ᵢ - rᵢⱼ)² over rollouts, p̂ the posterior mean; at best the mean p(1 - p);
    calibration_error: mean over rollouts of |mean p̂ - mean r| within tenths of p̂.
    """
    sizes = np.array([len(x) for x in rewards], dtype=np.float64)
    right = np.array([np.sum(x) for x in rewards], dtype=np.float64)
    expected = history.posterior(prompt_ids, prior).mean
    tenth = np.minimum((expected * 10).astype(np.int64), 9)
    gaps = np.bincount(tenth, sizes * expected - right, minlength=10)
    squares = right * (1 - expected) ** 2 + (sizes - right) * expected**2
    return {
        "first_solved": float((history.never_solved(prompt_ids) & (right > 0)).sum()),
        "brier": float(squares.sum() / sizes.sum()),
        "calibration_error": float(np.abs(gaps).sum() / sizes.sum()),
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

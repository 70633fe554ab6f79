"""Splitting a fixed number of rollouts over prompts so that the sum of utilities is largest."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.apportion import Bound, Counts, Reals, whole_bounds

# gains(i, n): what prompts i (m,) gain from one rollout more than n (m,) -> (m,).
Gains = Callable[[Counts, Counts], Reals]


def greedy_marginal_gain(
    gains: Gains, total: int, n_min: Bound, n_max: Bound, keys: ArrayLike
) -> Counts:
    """Counts that maximise Σ Uᵢ(nᵢ) for concave utilities Uᵢ, as if always buying the best next.

    Exact for concave Uᵢ, where a prompt's marginal gains never rise: the result holds the largest
    gains of all. They are found without listing them, by selection in sorted rows (Frederickson
    and Johnson 1982): a trial level, the median of the middles of the open ranges, tells for every
    prompt which gains lie above it, and halves at least half of the ranges. About 30 · B gains
    are looked at for n_max = 64, whatever the total.

    Args:
        gains: `gains(i, n)` = Uᵢ(n + 1) - Uᵢ(n) for arrays of prompts i and counts n, the value of
            going from n to n + 1.
        total: rollouts to give out.
        n_min: scalar or (B,) whole numbers, hard lower bound.
        n_max: scalar or (B,) whole numbers, hard upper bound.
        keys: (B,) uint64, a distinct hash per prompt; of equal gains the smaller key wins, and
            takes all of them that it has.

    Returns:
        (B,) int64, Σ = total, n_min <= nᵢ <= n_max.

    Raises:
        ValueError: bounds that cannot hold `total`, or a gain that is NaN.
    """
    key = np.asarray(keys, dtype=np.uint64)
    low, high = whole_bounds(n_min, n_max, key.size, total)
    gain = _numbers(gains)
    while (left := total - int(low.sum())) > 0:  # low <= result <= high, prompt by prompt
        rows = np.flatnonzero(low < high)
        middle = (low[rows] + high[rows]) // 2
        at_middle = gain(rows, middle)
        level = np.partition(at_middle, rows.size // 2)[rows.size // 2]
        above = _end(gain, np.greater, level, rows, low[rows], high[rows])
        if int((above - low[rows]).sum()) > left:
            high[rows] = above
            continue
        # Gains that rise by rounding must not keep a range from getting narrower.
        start = np.where(at_middle >= level, np.maximum(above, middle + 1), above)
        not_below = _end(gain, np.greater_equal, level, rows, start, high[rows])
        if int((not_below - low[rows]).sum()) > left:
            left -= int((above - low[rows]).sum())
            low[rows] = above + _by_key(not_below - above, left, key[rows])
            break
        low[rows] = not_below
    return low


def _numbers(gains: Gains) -> Gains:
    """`gains`, with every value checked."""

    def checked(rows: Counts, counts: Counts) -> Reals:
        found = np.asarray(gains(rows, counts), dtype=np.float64)
        if np.isnan(found).any():
            i = int(np.isnan(found).argmax())
            raise ValueError(f"gains({rows[i]}, {counts[i]}) is NaN; utilities must be numbers")
        return found

    return checked


def _end(
    gains: Gains, compare: np.ufunc, level: float, rows: Counts, low: Counts, high: Counts
) -> Counts:
    """The first n in [low, high] whose gain does not compare with `level`, or high."""
    low, high = low.copy(), high.copy()
    searched = np.flatnonzero(low < high)
    while searched.size:
        middle = (low[searched] + high[searched]) // 2
        holds = compare(gains(rows[searched], middle), level)
        low[searched[holds]] = middle[holds] + 1
        high[searched[~holds]] = middle[~holds]
        searched = searched[low[searched] < high[searched]]
    return low


def _by_key(room: Counts, left: int, keys: NDArray[np.uint64]) -> Counts:
    """`left` given out in the order of the keys, to each as much as it has room for."""
    order = np.argsort(keys)
    before = np.cumsum(room[order]) - room[order]
    given = np.empty_like(room)
    given[order] = np.clip(left - before, 0, room[order])
    return given

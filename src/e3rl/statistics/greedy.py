"""Splitting a fixed number of rollouts over prompts so that the sum of utilities is largest."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.apportion import SNAP, Bound, Counts, Reals, whole_bounds

# gains(i, n): what prompts i (m,) gain from one rollout more than n (m,) -> (m,).
Gains = Callable[[Counts, Counts], Reals]


def divide_by_cost(gain: Gains, cost: Reals) -> Gains:
    """Gains per cost, of prompts with costs (B,)."""
    return lambda i, n: gain(i, n) / cost[i]


def greedy_marginal_gain(
    gains: Gains,
    total: int,
    n_min: Bound,
    n_max: Bound,
    keys: ArrayLike,
    costs: ArrayLike | None = None,
    kinds: Counts | None = None,
    per_cost: Callable[[Gains, Reals], Gains] = divide_by_cost,
) -> Counts:
    """Counts that maximise Σ Uᵢ(nᵢ) for concave utilities Uᵢ, as if always buying the best next.

    Exact for concave Uᵢ, where a prompt's marginal gains never rise: the result holds the largest
    gains of all, which `_buy_greedily` finds without listing them. With costs cᵢ, the budget is
    what `total` rollouts of mean cost would cost, Σ cᵢnᵢ <= total · c̄, the best next is that of the
    largest gain per cost, and the first that is too dear ends it: less than one rollout is left.

    Args:
        gains: `gains(i, n)` = Uᵢ(n + 1) - Uᵢ(n), of prompts (or kinds) i with n rollouts.
        total: rollouts to give out.
        n_min, n_max: scalars or (B,) whole numbers, hard bounds.
        keys: (B,) uint64, a distinct hash per prompt; of equal gains the smaller key takes all.
        costs: (B,) > 0, of one rollout of each prompt; None where all cost the same.
        kinds: (B,) from 0 to K - 1, none left out; prompts of a kind have equal gains, bounds and
            costs, and get the same counts, but for the last rollouts, which the keys give out.
        per_cost: makes gains per cost of gains and costs, or anything else in that order.

    Returns (B,) int64, n_min <= nᵢ <= n_max, Σ = total without costs.

    Raises ValueError for bounds that cannot hold `total`, costs that are not positive or whose
    budget does not hold the lower bounds, or a gain that is NaN.
    """
    key = np.asarray(keys, dtype=np.uint64)
    low, high = whole_bounds(n_min, n_max, key.size, total)
    gain = _refuse_nan(gains)
    kind = np.arange(key.size) if kinds is None else kinds
    size = np.bincount(kind)
    some = np.empty(size.size, dtype=np.int64)  # a prompt of every kind
    some[kind] = np.arange(key.size)
    cost = np.ones(key.size) if costs is None else _positive(costs)
    left, value = float(total - low.sum()), gain
    if costs is not None:
        left, value = _left_to_pay(total, cost, low), per_cost(gain, cost[some])
    bought, room, left = _buy_greedily(value, size * cost[some], left, low[some], high[some])
    return bought[kind] + _by_key(room[kind], left, key, cost)


def _left_to_pay(total: int, cost: Reals, low: Counts) -> float:
    """What `total` rollouts of mean cost leave once the lower bounds are paid for.

    Raises ValueError where they do not pay for these.
    """
    left = float(total * cost.mean() - (low * cost).sum())
    if left < -SNAP * total * cost.mean():
        raise ValueError(
            f"total={total} rollouts of mean cost {cost.mean():g} do not pay for n_min, "
            f"which costs {(low * cost).sum():g}"
        )
    return left


def _positive(costs: ArrayLike) -> Reals:
    cost = np.asarray(costs, dtype=np.float64)
    if not ((cost > 0) & np.isfinite(cost)).all():
        raise ValueError(f"costs must be finite and > 0, got {cost[:8].tolist()} ...")
    return cost


def _buy_greedily(
    gain: Gains, cost: Reals, left: float, low: Counts, high: Counts
) -> tuple[Counts, Counts, float]:
    """`low` and what `left` buys, in the order of falling gains, up to the first that are equal and
    not all affordable; then how many each has of those, and what is left for them.

    By selection in sorted rows (Frederickson and Johnson 1982): a trial level, the median of the
    middles of the open ranges, tells for every prompt which gains lie above it, and halves at least
    half of the ranges. About 30 · B gains are looked at for n_max = 64, whatever the total.
    """
    room = np.zeros_like(low)
    while left > 0 and (rows := np.flatnonzero(low < high)).size:  # low <= result <= high
        price = cost[rows]
        middle = (low[rows] + high[rows]) // 2
        at_middle = gain(rows, middle)
        level = np.partition(at_middle, rows.size // 2)[rows.size // 2]
        above = _end(gain, np.greater, level, rows, low[rows], high[rows])
        dearer = float(((above - low[rows]) * price).sum())
        if dearer > left:
            high[rows] = above
            continue
        # Gains that rise by rounding must not keep a range from getting narrower.
        start = np.where(at_middle >= level, np.maximum(above, middle + 1), above)
        not_below = _end(gain, np.greater_equal, level, rows, start, high[rows])
        spent = float(((not_below - low[rows]) * price).sum())
        if spent > left:
            low[rows], room[rows] = above, not_below - above
            return low, room, left - dearer
        low[rows] = not_below
        left -= spent
    return low, room, left


def _refuse_nan(gains: Gains) -> Gains:
    """`gains` that raise ValueError where a value is NaN."""

    def call(rows: Counts, counts: Counts) -> Reals:
        found = np.asarray(gains(rows, counts), dtype=np.float64)
        if np.isnan(found).any():
            i = int(np.isnan(found).argmax())
            raise ValueError(f"gains({rows[i]}, {counts[i]}) is NaN; utilities must be numbers")
        return found

    return call


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


def _by_key(room: Counts, left: float, keys: NDArray[np.uint64], cost: Reals) -> Counts:
    """What `left` buys in the order of the keys, for each as much as it has room for."""
    order = np.argsort(keys)
    wanted = (room * cost)[order]
    affordable = np.floor((left - np.cumsum(wanted) + wanted) / cost[order] + SNAP)
    given = np.empty_like(room)
    given[order] = np.clip(affordable, 0, room[order]).astype(np.int64)
    return given

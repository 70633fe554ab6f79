"""Splitting a fixed number of rollouts over prompts in proportion to weights, within bounds."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Weights this much smaller than the largest are served after it, not beside it: λ would have to
# exceed what float64 can add up to whole rollouts.
NEGLIGIBLE = 1e-12
# A share this close below a whole number is that number (8 split 4/4, never 5/3).
SNAP = 1e-9

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]
Bound = int | Sequence[int] | Counts


def water_fill(
    weights: ArrayLike, total: int, n_min: Bound, n_max: Bound, keys: ArrayLike
) -> Counts:
    """Counts in proportion to weights above a minimum, below a maximum, with an exact sum.

        nᵢ(λ) = clip(n_min + λ·wᵢ, n_min, n_max),   λ such that Σ nᵢ(λ) = total,

    then rounded by largest remainder under the caps. What the caps keep from heavy prompts goes
    to the others, by weight; prompts of weight 0 get more than n_min only when all others are
    full, and then in equal parts. The continuous problem is solved exactly, over sorted
    breakpoints, and in an order that does not depend on the prompts' positions: permuting the
    inputs permutes the counts.

    Args:
        weights: (B,) finite, >= 0.
        total: rollouts to give out.
        n_min: scalar or (B,) whole numbers, hard lower bound.
        n_max: scalar or (B,) whole numbers, hard upper bound.
        keys: (B,) uint64, a distinct hash per prompt; of equal remainders the smaller key wins.

    Returns:
        (B,) int64, Σ = total, n_min <= nᵢ <= n_max.

    Raises:
        ValueError: bounds that cannot hold `total`, negative or non-finite weights.
    """
    weight = np.asarray(weights, dtype=np.float64)
    key = np.asarray(keys, dtype=np.uint64)
    if weight.ndim != 1 or weight.shape != key.shape:
        raise ValueError(f"weights {weight.shape} and keys {key.shape} must both be (B,)")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise ValueError(f"weights must be finite and >= 0, got {weight[:8].tolist()} ...")
    low, high = whole_bounds(n_min, n_max, weight.size, total)
    capacity, extra = high - low, total - int(low.sum())
    if extra == 0:
        return low
    if extra == capacity.sum():
        return high
    order = np.lexsort((key, high, low, weight))
    shares = np.empty_like(weight)
    shares[order] = _shares(weight[order], capacity[order].astype(np.float64), float(extra))
    return low + _largest_remainder(shares, capacity, extra, key)


def whole_bounds(n_min: Bound, n_max: Bound, n: int, total: int) -> tuple[Counts, Counts]:
    """Both bounds as (n,) int64, once `total` is known to fit between them."""
    low, high = (_whole_numbers(name, x, n) for name, x in (("n_min", n_min), ("n_max", n_max)))
    if (low < 0).any() or (low > high).any():
        raise ValueError(
            f"0 <= n_min <= n_max must hold for every prompt, got n_min={n_min}, n_max={n_max} "
            f"with total={total}"
        )
    if not int(low.sum()) <= total <= int(high.sum()):
        raise ValueError(
            f"total={total} rollouts cannot be given to {n} prompts within n_min={n_min} and "
            f"n_max={n_max} each: between {low.sum()} and {high.sum()} are possible"
        )
    return low, high


def _whole_numbers(name: str, bound: Bound, n: int) -> Counts:
    values = np.broadcast_to(np.asarray(bound), (n,))
    whole = values.astype(np.int64)
    if (whole != values).any():
        raise ValueError(f"{name} must be whole numbers, got {bound}")
    return whole


def _shares(weights: Reals, capacity: Reals, extra: float) -> Reals:
    """Real shares min(λ·w, capacity) that add up to `extra`; negligible weights come last."""
    top = weights.max(initial=0.0)
    scaled = weights / top if top > 0 else np.ones_like(weights)
    heavy = scaled > NEGLIGIBLE
    shares = np.zeros_like(capacity)
    room = float(capacity[heavy].sum())
    if room < extra:
        shares[heavy] = capacity[heavy]
        shares[~heavy] = _shares(weights[~heavy], capacity[~heavy], extra - room)
    else:
        level = _level(scaled[heavy], capacity[heavy], extra)
        shares[heavy] = np.minimum(level * scaled[heavy], capacity[heavy])
    return shares


def _level(weights: Reals, capacity: Reals, extra: float) -> float:
    """The λ with Σ min(λ·w, capacity) = extra, for w > 0 and extra <= Σ capacity."""
    full_at = capacity / weights
    order = np.argsort(full_at, kind="stable")
    capacity = capacity[order]
    taken = np.cumsum(capacity) - capacity
    open_weight = np.cumsum(weights[order][::-1])[::-1]
    # levels[j] is λ if exactly the first j are full; the first that fills nobody else is true.
    levels = (extra - taken) / open_weight
    return float(levels[np.argmax(levels <= full_at[order])])


def _largest_remainder(
    shares: Reals, capacity: Counts, extra: int, keys: NDArray[np.uint64]
) -> Counts:
    """Whole numbers next to `shares` with sum `extra`: +1 by falling fractional part."""
    counts = np.floor(shares + SNAP).astype(np.int64)
    if counts.sum() == extra:
        return counts
    fraction = np.round(shares - counts, 9)
    order = np.lexsort((keys, -fraction))
    below_cap = order[counts[order] < capacity[order]]
    counts[below_cap[: extra - int(counts.sum())]] += 1
    return counts

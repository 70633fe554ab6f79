"""Sharing whole groups among ranks so that all have equally much to do."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

# A smaller gain than this share of the load is rounding, and could be undone for ever.
NEGLIGIBLE = 1e-9


def balance(loads: ArrayLike, parts: int, keys: ArrayLike) -> NDArray[np.int64]:
    """Part of each item, such that the largest sum of loads in a part is small.

    Longest processing time first (Graham 1969): items in the order of falling load, each to the
    part with the smallest sum so far, which is within 4/3 - 1/(3·parts) of the best possible.
    Then the part with the largest sum gives an item to another one, or swaps one with it, as long
    as the larger of the two sums falls by that. Permuting the items permutes the result; no part
    is empty, and none holds items without a load alone where there are `parts` items with one.

    Args:
        loads: (B,) finite, >= 0, B >= parts.
        parts: number of parts, >= 1.
        keys: (B,) uint64, a distinct hash per item; of equal loads the smaller key comes first.

    Returns:
        (B,) int64 in [0, parts).

    Raises:
        ValueError: negative or non-finite loads, fewer items than parts.
    """
    load, key = np.asarray(loads, dtype=np.float64), np.asarray(keys, dtype=np.uint64)
    if load.ndim != 1 or load.shape != key.shape:
        raise ValueError(f"loads {load.shape} and keys {key.shape} must both be (B,)")
    if not np.isfinite(load).all() or (load < 0).any():
        raise ValueError(f"loads must be finite and >= 0, got {load[:8].tolist()} ...")
    if not 1 <= parts <= load.size:
        raise ValueError(f"{load.size} items cannot fill {parts} parts: at least one item each")
    order = np.lexsort((key, -load))
    result = np.empty(load.size, dtype=np.int64)
    result[order] = _improve_parts(load[order], _longest_first(load[order], parts), parts)
    return result


def imbalance(sums: ArrayLike) -> float:
    """Largest sum over the mean of all: 1 where every part has the same.

    The parts work at the same time and wait for each other, so this is how much longer a step
    takes than one that is shared perfectly. 1 where there is nothing to do.
    """
    values = np.asarray(sums, dtype=np.float64)
    mean = float(values.mean())
    return float(values.max()) / mean if mean > 0 else 1.0


def _longest_first(load: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Parts of items that come in falling order; ties go to the part with fewer items."""
    part = np.empty(load.size, dtype=np.int64)
    sums, sizes = np.zeros(parts), np.zeros(parts, dtype=np.int64)
    for item, value in enumerate(load):
        chosen = np.lexsort((sizes, sums))[0]
        part[item] = chosen
        sums[chosen] += value
        sizes[chosen] += 1
    return part


def _improve_parts(
    load: NDArray[np.float64], part: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
    """Moves and swaps out of the fullest part until none makes the fuller of two parts less so."""
    least = NEGLIGIBLE * float(load.sum())
    while True:
        sums = np.bincount(part, weights=load, minlength=parts)
        full = int(sums.argmax())
        inside, outside = np.flatnonzero(part == full), np.flatnonzero(part != full)
        # What the fullest part loses: an item less the one it gets for it, or the whole item.
        returned = np.concatenate([load[outside], np.zeros(parts)])
        other = np.concatenate([part[outside], np.arange(parts)])
        lost = load[inside][:, None] - returned
        peak = np.maximum(sums[full] - lost, sums[other] + lost)
        peak[:, other == full] = np.inf
        given, taken = np.unravel_index(int(peak.argmin()), peak.shape)
        if not peak[given, taken] < sums[full] - least:
            return part
        part[inside[given]] = other[taken]
        if taken < outside.size:
            part[outside[taken]] = full

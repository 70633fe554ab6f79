"""Holm's correction of p values for how many of them are looked at."""

from collections.abc import Sequence

import numpy as np


def adjust_holm(p_values: Sequence[float]) -> list[float]:
    """p values after Holm's correction (1979, Scandinavian Journal of Statistics 6), in order.

        p̃₍ᵢ₎ = max over j ≤ i of min(1, (m - j + 1)·p₍ⱼ₎),   p₍₁₎ ≤ p₍₂₎ ≤ ... of m

    Of all whose adjusted p is below α, one or more are wrong with a probability of at most α,
    however the comparisons depend on each other.

    Raises:
        ValueError: a p outside [0, 1].
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p values lie in [0, 1], got {list(p_values)}")
    order = np.argsort(p, kind="stable")
    rising = np.maximum.accumulate(np.minimum(1.0, p[order] * np.arange(len(p), 0, -1)))
    adjusted = np.empty_like(p)
    adjusted[order] = rising
    return [float(each) for each in adjusted]

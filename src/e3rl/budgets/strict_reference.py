"""The published allocator's arithmetic, defects included, for regression against its numbers."""

import math
from collections.abc import Sequence

# What the published code adds to Σk; it also makes exact shares fall below a whole number.
DENOMINATOR_GUARD = 1e-8


def published_counts(ranks: Sequence[float], total: int, n_min: int, n_max: int) -> list[int]:
    """Rollouts per prompt as the code of arXiv 2505.18573 (algorithm 1) splits them.

        nᵢ = n_min + ⌊N_rem·kᵢ/(Σk + 1e-8)⌋,   N_rem = total - B·n_min,

    and what is left goes to the prompts in the order of falling kᵢ (equal ranks in the order of
    the batch; the published code leaves their order to an unstable sort, and its own ranks are
    never equal), each taking all it can hold below n_max. Known defects, all kept:

    - the cap binds the leftover only, so hard prompts may exceed n_max;
    - bounds that cannot hold `total` shift counts below n_min or leave part of it unspent;
    - prompts never seen count as the easiest, and if all are, the first in the batch get most;
    - the leftover piles up on few prompts; exact shares may lose one to rounding.

    Args:
        ranks: (B,) difficulty ranks, NaN = never seen.
        total: rollouts to give out.
        n_min: lower bound per prompt.
        n_max: upper bound per prompt.

    Returns:
        (B,) counts.
    """
    weights = [0.0 if math.isnan(rank) else rank for rank in ranks]
    extra = total - n_min * len(weights)
    scale = sum(weights) + DENOMINATOR_GUARD
    counts = [n_min + math.floor(extra * weight / scale) for weight in weights]
    left = total - sum(counts)
    for i in sorted(range(len(counts)), key=lambda i: -weights[i]):
        gift = min(left, max(n_max - counts[i], 0))
        if gift <= 0:
            continue
        counts[i] += gift
        left -= gift
    return counts

"""Deviations of per-prompt gradient estimates that use norms of gradients."""

import numpy as np

from e3rl.statistics.apportion import Reals

GVM_ALPHA = 1e-3  # the published value; the weight is largest at p = √α


def gvm_weight(p: Reals, norm: Reals, alpha: float = GVM_ALPHA) -> Reals:
    """g / √(p + α/p), and 0 where p or g is 0 (arXiv 2505.02391, exponent β = 2).

    Rejection sampling needs accepted samples: as p falls the weight rises like 1/√p, is largest at
    √α and vanishes like √(p/α), where nothing is going to be accepted.

    Args:
        p: (B,) pass rates in [0, 1].
        norm: (B,) g, mean norms of the gradient of log p over accepted samples.
        alpha: above 0, where the weight begins to fall again.
    """
    return np.where(p > 0, norm * np.sqrt(p / (p * p + alpha)), 0.0)


def cures_deviation(
    p: Reals, right: Reals, right_squared: Reals, wrong: Reals, wrong_squared: Reals
) -> Reals:
    """σ with σ² = p q² E[g₊²] + p² q E[g₋²] - p² q² (E[g₊] - E[g₋])²,   q = 1 - p.

    The deviation of one centred policy-gradient sample (CurES); with equal norms it is √(pq).

    Args:
        p: (B,) pass rates in [0, 1].
        right, right_squared: (B,) E[g₊] and E[g₊²] over right rollouts.
        wrong, wrong_squared: (B,) E[g₋] and E[g₋²] over wrong ones.
    """
    q = 1 - p
    variance = p * q**2 * right_squared + p**2 * q * wrong_squared - (p * q * (right - wrong)) ** 2
    deviation: Reals = np.sqrt(np.maximum(variance, 0.0))
    return deviation

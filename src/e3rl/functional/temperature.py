"""One step of the temperature towards a target entropy, three ways. Plain floats.

Throughout ln α = ln(H_target / H). Clamps of the temperature belong to the rule that calls.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

# The entropy of a temperature at which one token has all the mass underflows to 0.
SMALLEST_ENTROPY = 1e-12


def vocabulary_factor(vocabulary: int) -> float:
    """F = ln V + ln ln V, which the paper takes for the gap of the leading logit.

    (arXiv 2505.18573, appendix A.) V is the width of the logits. Raises ValueError for V < 2.
    """
    if vocabulary < 2:
        raise ValueError(f"vocabulary={vocabulary} must have at least 2 tokens")
    return math.log(vocabulary) + math.log(math.log(vocabulary))


def paper_step(tau: float, log_alpha: float, vocabulary: int) -> float:
    """τ' = τ·(1 + τ·ln α / F)  (arXiv 2505.18573 eq. 4).

    It assumes an elasticity d ln H/d ln τ of F/τ, about 14 for V = 151,936, where trained
    policies have about 1: a slow integrator of the error rather than a full correction.
    """
    return tau * (1 + tau * log_alpha / vocabulary_factor(vocabulary))


def elasticity_step(
    tau: float, log_alpha: float, elasticity: float, mu: float, limit: float = 0.5
) -> float:
    """ln τ' = ln τ + μ·clip(ln α, ±limit)/ε with the measured elasticity ε = ΣW/ΣH.

    W is the varentropy, the exact slope dH/d ln τ at fixed states; μ = 1 would be Newton's step.

    Raises:
        ValueError: an elasticity that is not above 0, or a gain μ outside (0, 2), where the loop
            cannot settle.
    """
    if not elasticity > 0:
        raise ValueError(
            f"elasticity={elasticity} must be above 0; a policy without varentropy has an entropy "
            "that no temperature moves"
        )
    if not 0 < mu < 2:
        raise ValueError(f"mu={mu} must lie in (0, 2); 0.3 to 0.5 settles in a few steps")
    return tau * math.exp(mu * min(max(log_alpha, -limit), limit) / elasticity)


def solve_step(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Temperature at which a measured curve H(τ) reaches the target.

    Linear in (ln τ, ln H) between neighbouring points; the curve's first or last temperature
    where the target lies outside. H rises with τ at fixed states, since dH/d ln τ is a variance.

    Args:
        curve: (τ, H in nats) with τ ascending, at least one point.
        target: entropy to reach, nats, > 0.

    Raises:
        ValueError: no points, temperatures not ascending, entropies that clearly fall, or a
            target that is not above 0.
    """
    taus = [tau for tau, _ in curve]
    entropies = [max(entropy, SMALLEST_ENTROPY) for _, entropy in curve]
    _check_curve(taus, entropies, target)
    if target <= entropies[0]:
        return taus[0]
    right = bisect_left(entropies, target)
    if right == len(taus):
        return taus[-1]
    left = right - 1
    rise = math.log(entropies[right] / entropies[left])
    part = math.log(target / entropies[left]) / rise
    return math.exp((1 - part) * math.log(taus[left]) + part * math.log(taus[right]))


def _check_curve(taus: Sequence[float], entropies: list[float], target: float) -> None:
    if not target > 0:
        raise ValueError(f"target={target} must be an entropy above 0 nats")
    if not taus or taus[0] <= 0 or any(b <= a for a, b in pairwise(taus)):
        raise ValueError(f"the curve needs ascending temperatures above 0, got {list(taus)}")
    # Sums of float32 entropies near ln V are equal up to rounding.
    if any(b < a * (1 - 1e-4) for a, b in pairwise(entropies)):
        raise ValueError(f"the entropy must not fall with the temperature, got {entropies}")

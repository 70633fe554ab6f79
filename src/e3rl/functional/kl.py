"""Kullback-Leibler divergences estimated from log-probs of sampled tokens."""

from typing import NamedTuple

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors

# exp(±20) still fits float32 products; a log-ratio beyond it is a broken policy, not a signal.
LOG_RATIO_LIMIT = 20.0


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token estimate exp(d) - d - 1 >= 0 of KL(π‖π_ref), d = ln π_ref - ln π, in nats.

    Unbiased for tokens sampled from π, with less variance than -d (Schulman 2020, "Approximating
    KL divergence", k3; GRPO, arXiv 2402.03300 eq. 4). As a *loss* on tokens from π its gradient
    (1 - exp(d)) ∇ln π has the mean of ∇KL(π_ref‖π), not of ∇KL(π‖π_ref).

    Args:
        logprobs: (M,) ln π of the sampled tokens, differentiable.
        reference_logprobs: (M,) ln π_ref of the same tokens.

    Returns:
        (M,); d is clamped to ±20.
    """
    check_vectors(logprobs=logprobs, reference_logprobs=reference_logprobs)
    d = (reference_logprobs - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(d) - d


class Mismatch(NamedTuple):
    """How far the trainer's log-probs are from the sampler's, on the sampler's tokens."""

    k3_mean: float  # estimate of KL(sampler‖trainer), nats per token
    max_gap: float  # largest |ln π_trainer - ln π_sampler|, not clamped


@torch.no_grad()
def mismatch(logprobs: Tensor, sampler_logprobs: Tensor) -> Mismatch:
    """Compare log-probs of one policy from two programs, at the same temperature.

    Gaps above about 0.05 in float32 are a bug: another temperature, another tokenisation, or
    weights that were not synchronised.

    Args:
        logprobs: (M,) from the trainer's forward pass, M >= 1.
        sampler_logprobs: (M,) as reported by the engine.

    Raises:
        ValueError: shapes that differ, or no token at all.
    """
    estimates = k3(sampler_logprobs, logprobs)
    if not estimates.numel():
        raise ValueError("mismatch needs at least one token")
    gap = (logprobs - sampler_logprobs).abs().max()
    return Mismatch(k3_mean=float(estimates.double().mean()), max_gap=float(gap))

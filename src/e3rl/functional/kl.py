"""Kullback-Leibler divergences estimated from log-probs of sampled tokens."""

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

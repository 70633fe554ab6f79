"""Gradient norms of log-probs with respect to the logits: what a backward pass would start from."""

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors
from e3rl.functional.logprobs import check_temperatures, scaled_logits


def logit_grad_norm_squared(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """‖∂ ln p(a) / ∂z‖² of p = softmax(z/τ) at a sampled token a:

        (1 - 2·p(a) + Σ_v p(v)²) / τ²,   since   ∂ ln p(a) / ∂z_v = (1[v = a] - p(v)) / τ

    Logits of one token do not enter another's log-prob, so the sum over a rollout's tokens is the
    squared norm for the log-prob of the whole completion. It stands in for the norm with respect
    to the weights (arXiv 2505.02391 takes the one of the output layer's) at the cost of a forward
    pass.

    Args:
        logits: (M, V) finite, at temperature 1.
        tokens: (M,) int64, the sampled ids.
        temperatures: (M,) > 0, as sampled.

    Returns:
        (M,) float32 (float64 for float64 logits), 0 <= value <= 2/τ².

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not above 0.
    """
    check_vectors(tokens=tokens, temperatures=temperatures)
    check_temperatures(logits, temperatures)
    probs = torch.softmax(scaled_logits(logits, temperatures), dim=1)  # (M, V)
    # As a sum of squares: the expanded form cancels where p(a) is near 1.
    residual = probs.scatter_add(1, tokens[:, None], -torch.ones_like(probs[:, :1]))
    return residual.square().sum(dim=1) / temperatures.to(probs.dtype).square()

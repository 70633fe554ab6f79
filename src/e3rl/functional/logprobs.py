"""Log-probabilities of sampled tokens at the temperature they were sampled with."""

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors


def token_logprobs(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """log softmax(z/τ)[token] = z[token]/τ - logsumexp(z/τ), in nats, differentiable.

    At least float32 whatever the logits are. One (M, V) copy is kept for the backward pass; the
    full log-softmax is never made.

    Args:
        logits: (M, V) finite, one row per sampled token.
        tokens: (M,) int64, the sampled ids.
        temperatures: (M,) > 0, as sampled.

    Returns:
        (M,) float32 (float64 for float64 logits).

    Raises:
        ValueError: shapes that do not fit, or a temperature that is not above 0.
    """
    check_vectors(tokens=tokens, temperatures=temperatures)
    scaled = scaled_logits(logits, temperatures)  # (M, V)
    chosen = scaled.gather(1, tokens[:, None]).squeeze(1)
    return chosen - torch.logsumexp(scaled, dim=1)


def scaled_logits(logits: Tensor, temperatures: Tensor) -> Tensor:
    """z/τ in at least float32: (M, V), (M,) -> (M, V).

    Raises ValueError for shapes that do not fit and temperatures that are not above 0: greedy
    decoding (τ = 0) has no density to train or to measure.
    """
    if logits.ndim != 2 or temperatures.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits (M, V) and temperatures (M,), got {tuple(logits.shape)} and "
            f"{tuple(temperatures.shape)}"
        )
    if not bool((temperatures > 0).all()):
        raise ValueError(
            f"temperatures must be above 0, got {float(temperatures.min())}; greedy rollouts "
            "(temperature 0) are for validation and have no log-probabilities to train on"
        )
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return precise / temperatures.to(precise.dtype)[:, None]

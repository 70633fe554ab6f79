"""Log-probabilities of sampled tokens at the temperature they were sampled with."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from e3rl.functional.checks import check_vectors


def token_logprobs(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """log softmax(z/τ)[token] = z[token]/τ - logsumexp(z/τ), in nats, differentiable once.

    At least float32 whatever the logits are. One (M, V) tensor is kept for the backward pass, and
    one is made there.

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
    check_temperatures(logits, temperatures)
    found: Tensor = _TokenLogprobs.apply(logits, tokens, temperatures)  # type: ignore[no-untyped-call]
    return found


class _TokenLogprobs(torch.autograd.Function):
    """∂ ln p(a) / ∂z_v = (1[v = a] - p_v) / τ, in one buffer; autograd's own steps take three."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
        logprobs = torch.log_softmax(scaled_logits(logits, temperatures), dim=1)  # (M, V)
        ctx.save_for_backward(logprobs, tokens, temperatures)
        ctx.dtype = logits.dtype
        # By index, for FSDP2 warns of outputs that are views.
        return logprobs[torch.arange(len(tokens), device=tokens.device), tokens]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logprobs, tokens, temperatures = ctx.saved_tensors
        gradient = (gradient / temperatures.to(gradient.dtype))[:, None]
        slopes = logprobs.exp().mul_(-gradient).scatter_add_(1, tokens[:, None], gradient)
        return slopes.to(ctx.dtype), None, None


def check_temperatures(logits: Tensor, temperatures: Tensor) -> None:
    """Raise ValueError unless logits are (M, V) and temperatures (M,), all above 0.

    Greedy decoding (τ = 0) has no density to train or to measure. Values are looked at on a CPU
    alone: elsewhere that would wait for all work before, at every call, and `RolloutBatch.check`
    has looked at them.
    """
    if logits.ndim != 2 or temperatures.shape != logits.shape[:1]:
        raise ValueError(
            f"expected logits (M, V) and temperatures (M,), got {tuple(logits.shape)} and "
            f"{tuple(temperatures.shape)}"
        )
    if temperatures.device.type == "cpu" and not bool((temperatures > 0).all()):
        raise ValueError(
            f"temperatures must be above 0, got {float(temperatures.min())}; greedy rollouts "
            "(temperature 0) are for validation and have no log-probabilities to train on"
        )


def scaled_logits(logits: Tensor, temperatures: Tensor) -> Tensor:
    """z/τ in at least float32: (M, V), (M,) -> (M, V); the logits themselves where all τ are 1."""
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # Asking takes longer than dividing where the answer is on another device.
    if precise.device.type == "cpu" and bool((temperatures == 1).all()):
        return precise
    return precise / temperatures.to(precise.dtype)[:, None]

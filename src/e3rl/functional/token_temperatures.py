"""The temperature that each token was sampled at, where it changes within a completion."""

import torch
from torch import Tensor


def token_temperatures(temperatures: Tensor, factors: Tensor | None, mask: Tensor) -> Tensor:
    """τᵢ·f_j at the j-th sampled token of rollout i, j from 0, and τᵢ off the mask.

    Products of float32, as engines form them.

    Args:
        temperatures: (n,) τ of the rollouts.
        factors: (L,) f by completion token, or None where all are 1.
        mask: (n, t) bool, True on sampled tokens.

    Returns:
        (n, t), of the dtype of `temperatures`.

    Raises:
        ValueError: shapes that do not fit, or a completion of more tokens than there are factors.
    """
    if mask.ndim != 2 or temperatures.shape != mask.shape[:1]:
        raise ValueError(
            f"expected temperatures (n,) and a mask (n, t), got {tuple(temperatures.shape)} and "
            f"{tuple(mask.shape)}"
        )
    taus = temperatures[:, None].expand(mask.shape)
    if factors is None:
        return taus
    longest = int(mask.sum(dim=1).max()) if mask.numel() else 0
    if longest > len(factors):
        raise ValueError(
            f"a completion has {longest} tokens, and there are temperature factors for "
            f"{len(factors)}: give one for each of max_new_tokens"
        )
    place = (mask.cumsum(dim=1) - 1).clamp(min=0, max=len(factors) - 1)
    return torch.where(mask, taus * factors.to(taus.device)[place], taus)


def factor_sums(lengths: Tensor, factors: Tensor | None) -> Tensor:
    """(N,) float64 sums of the factors over completions of `lengths` (N,) tokens."""
    if factors is None:
        return lengths.double()
    return factors.double().cumsum(dim=0)[lengths - 1]

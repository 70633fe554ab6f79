"""Weights that turn per-token losses into one objective, the same for every micro-batch split."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors

Aggregation = Literal["token_mean", "sequence_mean", "sequence_sum", "constant", "prompt_mean"]
PromptWeight = Literal["sample", "prompt"]


@dataclass(frozen=True)
class Totals:
    """Global counts of the minibatch: all ranks, all micro-batches, skipped rollouts included.

    Were skipped rollouts left out, the step would grow by the ratio: another algorithm.
    """

    tokens: int  # M, sampled tokens
    rollouts: int  # N

    def __post_init__(self) -> None:
        if not 1 <= self.rollouts <= self.tokens:
            raise ValueError(f"1 <= rollouts <= tokens must hold, got {self}")


def prompt_factors(sizes: Tensor, mean_size: float) -> Tensor:
    """Mean group size over own group size, by which every prompt counts alike.

    Sizes are those of the whole batch, whatever its minibatches: a small group is in few of them,
    and would count less if sizes were counted in each.

    Args:
        sizes: (N,) rollouts of each rollout's own group in the batch.
        mean_size: over the prompts of all ranks.

    Returns:
        (N,) float64; the sum over a batch is its number of rollouts.
    """
    check_vectors(sizes=sizes)
    return mean_size / sizes.double()


def rollout_weights(
    mode: Aggregation,
    lengths: Tensor,
    totals: Totals,
    factors: Tensor | None = None,
    *,
    max_length: int | None = None,
) -> Tensor:
    """The weight of every token of a rollout, so that the objective is Σ_tokens weight · l.

        token_mean      1/M                  long completions dominate (DAPO, arXiv 2503.14476)
        sequence_mean   1/N · 1/Tᵢⱼ          GRPO, arXiv 2402.03300 eq. 3
        sequence_sum    1/N                  REINFORCE
        constant        1/(N·L_max)          Dr.GRPO, arXiv 2503.20783
        prompt_mean     1/N · 1/Tᵢⱼ, with factors: 1/P · 1/nᵢ · 1/Tᵢⱼ, every prompt counts once

    `factors` are those of `prompt_factors`, (N/P)/nᵢ over the batch, so that a prompt's say does
    not grow with its budget (`prompt_weight="prompt"`). Their sum is N: the objective keeps its
    scale, and `sequence_mean` becomes `prompt_mean`. With `token_mean` a prompt then counts by its
    mean completion length; Σ weight·T is (N/P)·Σᵢ T̄ᵢ/M, which is 1 where length and group size are
    unrelated.

    Args:
        mode, totals: one of the above, and the global counts.
        lengths: (N',) sampled tokens of the rollouts at hand, any part of the minibatch.
        factors: (N',) of the same rollouts; None = every rollout counts alike.
        max_length: L_max, the configured limit of sampled tokens; `constant` needs it.

    Returns:
        (N',) float32.

    Raises ValueError for an unknown mode, `prompt_mean` without factors, `constant` without
    max_length, and empty rollouts.
    """
    if mode not in get_args(Aggregation):
        raise ValueError(f"mode={mode!r} must be one of {get_args(Aggregation)}")
    if mode == "prompt_mean" and factors is None:
        raise ValueError("mode='prompt_mean' needs factors: give those of `prompt_factors`")
    if bool((lengths < 1).any()):
        raise ValueError("every rollout must have at least one sampled token")
    weights = _sample_weights(mode, lengths.double(), totals, max_length)
    if factors is not None:
        check_vectors(lengths=lengths, factors=factors)
        weights = weights * factors
    return weights.float()


def _sample_weights(
    mode: Aggregation, lengths: Tensor, totals: Totals, max_length: int | None
) -> Tensor:
    """Weights where every rollout counts alike, in float64."""
    if mode == "token_mean":
        return torch.full_like(lengths, 1 / totals.tokens)
    if mode == "sequence_sum":
        return torch.full_like(lengths, 1 / totals.rollouts)
    if mode == "constant":
        if max_length is None or max_length < 1:
            raise ValueError(
                f"mode='constant' divides by max_length, got {max_length}; set it to the limit of "
                "sampled tokens"
            )
        return torch.full_like(lengths, 1 / (totals.rollouts * max_length))
    return 1 / (totals.rollouts * lengths)

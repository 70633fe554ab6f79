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
    prompts: int  # P, prompts with at least one rollout

    def __post_init__(self) -> None:
        if not 1 <= self.prompts <= self.rollouts <= self.tokens:
            raise ValueError(f"1 <= prompts <= rollouts <= tokens must hold, got {self}")


def rollout_weights(
    mode: Aggregation,
    lengths: Tensor,
    group: Tensor,
    group_sizes: Tensor,
    totals: Totals,
    *,
    prompt_weight: PromptWeight = "sample",
    max_length: int | None = None,
) -> Tensor:
    """The weight of every token of a rollout, so that the objective is Σ_tokens weight · l.

        token_mean      1/M                  long completions dominate (DAPO, arXiv 2503.14476)
        sequence_mean   1/N · 1/Tᵢⱼ          GRPO, arXiv 2402.03300 eq. 3
        sequence_sum    1/N                  REINFORCE
        constant        1/(N·L_max)          Dr.GRPO, arXiv 2503.20783
        prompt_mean     1/P · 1/nᵢ · 1/Tᵢⱼ   every prompt counts once

    `prompt_weight="prompt"` multiplies by (N/P)/nᵢ, mean group size over own group size, so that
    a prompt's say does not grow with its budget. Σ over rollouts of this factor is N: the
    objective keeps its scale, and `sequence_mean` becomes `prompt_mean` (which already has the
    factor and does not get it twice). With `token_mean` a prompt then counts by its mean
    completion length; Σ weight·T is (N/P)·Σᵢ T̄ᵢ/M, which is 1 where length and group size are
    unrelated.

    Args:
        mode: one of the above.
        lengths: (N',) sampled tokens of the rollouts at hand, any part of the minibatch.
        group: (N',) int64, their prompt rows.
        group_sizes: (P',) rollouts per prompt row over the whole minibatch and all ranks.
        totals: the global counts.
        prompt_weight: "sample" = every rollout counts alike, "prompt" = every prompt does.
        max_length: L_max, the configured limit of sampled tokens; `constant` needs it.

    Returns:
        (N',) float32.

    Raises:
        ValueError: unknown mode or prompt weight, `constant` without max_length, empty rollouts.
    """
    check_vectors(lengths=lengths, group=group)
    if mode not in get_args(Aggregation) or prompt_weight not in get_args(PromptWeight):
        raise ValueError(
            f"mode={mode!r} must be one of {get_args(Aggregation)} and "
            f"prompt_weight={prompt_weight!r} one of {get_args(PromptWeight)}"
        )
    if bool((lengths < 1).any()):
        raise ValueError("every rollout must have at least one sampled token")
    weights = _sample_weights(mode, lengths.double(), totals, max_length)
    if prompt_weight == "prompt" or mode == "prompt_mean":
        weights = weights * (totals.rollouts / totals.prompts) / group_sizes[group]
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

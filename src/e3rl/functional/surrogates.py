"""Per-token surrogate losses whose gradient is a policy gradient."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from e3rl.functional.checks import check_vectors
from e3rl.functional.kl import LOG_RATIO_LIMIT
from e3rl.functional.ragged import group_means


@dataclass(frozen=True)
class SurrogateInput:
    """What a surrogate may read of the M sampled tokens of a micro-batch."""

    log_ratios: Tensor  # (M,) ln π_θ(token) - ln π_old(token), differentiable
    logprobs: Tensor  # (M,) ln π_θ(token), differentiable
    advantages: Tensor  # (M,) of the token's rollout
    rollout: Tensor  # (M,) int64, index of the token's rollout within the micro-batch

    def __post_init__(self) -> None:
        check_vectors(
            log_ratios=self.log_ratios,
            logprobs=self.logprobs,
            advantages=self.advantages,
            rollout=self.rollout,
        )


class Surrogate(NamedTuple):
    """Losses to be minimised, and where a bound on the importance ratio acted."""

    loss: Tensor  # (M,)
    clipped: Tensor  # (M,) bool
    # (M,) bool, those of them whose ratio was above its bound; None: by each token's own ratio
    above: Tensor | None = None


def clipped(
    inputs: SurrogateInput,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> Surrogate:
    """PPO's clipped surrogate with separate bounds, and the dual clip for A < 0.

        l = -min(ρA, clip(ρ, 1-ε_low, 1+ε_high)·A),   and for A < 0:  min(l, -c·A)

    PPO: arXiv 1707.06347 eq. 7; separate bounds: DAPO's clip-higher, arXiv 2503.14476; dual clip:
    arXiv 1912.09729. Written as l = -A·clip(ρ, lower, upper): for A > 0 only 1+ε_high binds, for
    A < 0 only 1-ε_low and c do. At ρ = 1 nothing binds and the gradient is -A ∇ln π.

    Args:
        inputs: the micro-batch's tokens; log-ratios are clamped to ±20.
        clip_low: ε_low in [0, 1].
        clip_high: ε_high >= 0.
        dual_clip: c > 1; None = no dual clip.

    Raises:
        ValueError: bounds out of range.
    """
    if not 0 <= clip_low <= 1 or not 0 <= clip_high < math.inf:
        raise ValueError(f"clip_low={clip_low} must lie in [0, 1], clip_high={clip_high} in [0, ∞)")
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(f"dual_clip={dual_clip} must be above 1 (published: 3), or null for none")
    ratio = inputs.log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    negative = inputs.advantages < 0
    lower = torch.where(negative, 1 - clip_low, 0.0).to(ratio.dtype)
    upper = torch.where(negative, dual_clip or math.inf, 1 + clip_high).to(ratio.dtype)
    bounded = ratio.clamp(lower, upper)
    cut = (bounded != ratio) & (inputs.advantages != 0)
    above = cut & (ratio > bounded)
    return Surrogate(-inputs.advantages * bounded, cut.detach(), above.detach())


def gspo(inputs: SurrogateInput, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> Surrogate:
    """Group sequence policy optimisation: one ratio for the whole rollout, clipped as one.

        s = (Π_t ρ_t)^(1/T),   l = -min(sA, clip(s, 1-ε_low, 1+ε_high)·A)  for each token

    (arXiv 2507.18071, section 4; the bounds are those of its experiments.) In the token form of
    its section 4.3, ln s_t = sg(mean ln ρ) + ln π_t - sg(ln π_t), so that each token has the
    gradient -s·A ∇ln π_t of its own and can be weighted or masked; summed with the aggregation
    `sequence_mean` it is the gradient of the sequence objective. At ρ = 1 it is GRPO.

    Args:
        inputs: the micro-batch's tokens, whole rollouts.
        clip_low: ε_low in [0, 1].
        clip_high: ε_high >= 0.

    Raises:
        ValueError: bounds out of range.
    """
    logs = inputs.log_ratios
    means = group_means(logs.detach(), inputs.rollout, int(inputs.rollout.max()) + 1)
    of_rollout = replace(inputs, log_ratios=means[inputs.rollout] + logs - logs.detach())
    return clipped(of_rollout, clip_low=clip_low, clip_high=clip_high, dual_clip=None)


def cispo(
    inputs: SurrogateInput, *, weight_low: float = 0.0, weight_high: float = 5.0
) -> Surrogate:
    """Clipped importance weights on a REINFORCE loss, so that no token loses its gradient.

        l = -sg(clip(ρ, w_low, w_high))·A·ln π

    (MiniMax-M1, arXiv 2506.13585, section 3.1, which leaves the lower side open.) The bounds are
    those of the weight itself, not distances from 1. `clipped` marks tokens whose weight was
    bounded; their gradient remains. At ρ = 1 the gradient is that of GRPO.

    Args:
        inputs: the micro-batch's tokens; log-ratios are clamped to ±20.
        weight_low: smallest weight, in [0, 1].
        weight_high: largest weight, >= 1.

    Raises:
        ValueError: bounds that do not hold 1, the weight of an unchanged policy.
    """
    if not 0 <= weight_low <= 1 <= weight_high:
        raise ValueError(
            f"weight_low={weight_low} must lie in [0, 1] and weight_high={weight_high} be at least "
            "1; they bound the importance weight itself"
        )
    ratio = inputs.log_ratios.detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    weight = ratio.clamp(weight_low, weight_high)
    cut = (weight != ratio) & (inputs.advantages != 0)
    return Surrogate(-weight * inputs.advantages * inputs.logprobs, cut, cut & (ratio > weight))

"""Importance weights between the trainer's policy and the engine that sampled.

Two programs that run the same weights disagree a little (kernels, precision), and one that runs
older weights disagrees more. The ratio of their probabilities

    w = π_trainer(token) / π_sampler(token),   both at the temperature of the rollout,

turns a mean over the sampler's tokens into one over the trainer's. Here π_trainer is the policy
before the first optimiser step of the batch. Weights carry no gradient: they multiply token
losses.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from e3rl.functional.checks import check_vectors
from e3rl.functional.kl import LOG_RATIO_LIMIT
from e3rl.functional.ragged import group_means, group_sums

Level = Literal["token", "sequence", "geometric"]


class Correction(NamedTuple):
    """What a token's loss is multiplied by, and where a bound acted on it."""

    weights: Tensor  # (M,) >= 0, without gradient
    cut: Tensor  # (M,) bool


def importance_weights(log_ratios: Tensor, rollout: Tensor, level: Level) -> Tensor:
    """Weight of each token, w_t of its own or one for all tokens of its rollout.

        token      w_t                  what each token's own sampling probability asks for
        sequence   Π_t w_t              what the whole rollout's asks for: exact, but the spread
                                        of its logarithm grows with √T
        geometric  (Π_t w_t)^(1/T)      the rollout's mean disagreement, alike for all lengths

    Args:
        log_ratios: (M,) ln π_trainer - ln π_sampler, M >= 1; clamped to ±20 after reduction.
        rollout: (M,) int64, the rollout of each token; all tokens of a rollout must be there.
        level: one of the above.

    Returns:
        (M,) without gradient.

    Raises:
        ValueError: unknown level, or shapes that differ.
    """
    check_vectors(log_ratios=log_ratios, rollout=rollout)
    if level not in get_args(Level):
        raise ValueError(f"level={level!r}: choose one of {get_args(Level)}")
    logs = log_ratios.detach()
    if level != "token":
        reduce = group_sums if level == "sequence" else group_means
        logs = reduce(logs, rollout, int(rollout.max()) + 1)[rollout]
    return logs.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def truncated(
    log_ratios: Tensor, rollout: Tensor, *, level: Level = "token", cap: float = 2.0
) -> Correction:
    """Truncated importance sampling (TIS): min(w, C).

    Bounds the variance at the price of a bias towards the sampler where w > C (truncated
    weights: IMPALA, arXiv 1802.01561 section 4.1; between engine and trainer: Yao et al. 2025,
    "Your efficient RL framework secretly brings you off-policy RL training").

    At level `sequence` the product is meant: the geometric mean hardly differs from 1, so that
    truncating it corrects next to nothing.

    Args:
        log_ratios: (M,) ln π_trainer - ln π_sampler.
        rollout: (M,) int64.
        level: see `importance_weights`.
        cap: C >= 1; 1.5 to 5 for tokens, 2 to 10 for sequences are in use.

    Raises:
        ValueError: a cap below 1, which would shrink every token's loss.
    """
    if not cap >= 1:
        raise ValueError(f"cap={cap} must be at least 1; 2 is usual")
    weights = importance_weights(log_ratios, rollout, level)
    return Correction(weights.clamp(max=cap), weights > cap)


def masked(
    log_ratios: Tensor,
    rollout: Tensor,
    *,
    level: Level = "token",
    low: float = 0.5,
    high: float = 5.0,
) -> Correction:
    """Masked importance sampling (MIS): w inside [low, high], else 0.

    A token on which the programs disagree that much says more about the disagreement than about
    the policy. At level `token` this is IcePop (arXiv 2510.18855), whose bounds are the default.
    What is masked still counts in the loss's normaliser, so that the other tokens keep their
    weight.

    Whole rollouts are best masked by the geometric mean: one band then suits all lengths, while
    a band for the product throws out long rollouts first (0.02 nats per token make a standard
    deviation of 0.63 over 1,000 tokens).

    Args:
        log_ratios: (M,) ln π_trainer - ln π_sampler.
        rollout: (M,) int64.
        level: see `importance_weights`.
        low: smallest weight that is kept, in [0, 1].
        high: largest weight that is kept, >= 1.

    Raises:
        ValueError: a band that does not hold 1, where the programs agree.
    """
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"low={low} must lie in [0, 1] and high={high} be at least 1")
    weights = importance_weights(log_ratios, rollout, level)
    cut = (weights < low) | (weights > high)
    return Correction(weights.masked_fill(cut, 0.0), cut)


@dataclass
class WeightSums:
    """Sums of weights over tokens; micro-batches and ranks add up."""

    tokens: float = 0.0
    total: float = 0.0  # Σw
    squares: float = 0.0  # Σw²
    largest: float = 0.0

    def add(self, weights: Tensor) -> None:
        """Count (M,) weights, M >= 1."""
        exact = weights.detach().double()
        self.tokens += exact.numel()
        self.total += float(exact.sum())
        self.squares += float(exact.square().sum())
        self.largest = max(self.largest, float(exact.max()))


class WeightSummary(NamedTuple):
    """What weights tell about the disagreement; all 0 where there was no token."""

    mean: float  # E[w], 1 in expectation unless bounded
    largest: float
    ess: float  # effective share of the tokens, 1/E[(w/E w)²] = (Σw)²/(n Σw²), in [0, 1]
    chi2: float  # E[w²] - 1, estimate of χ²(trainer‖sampler) by unbounded weights


def summarize_weights(sums: WeightSums) -> WeightSummary:
    """Figures of the tokens that were counted."""
    if not sums.tokens:
        return WeightSummary(0.0, 0.0, 0.0, 0.0)
    mean, square = sums.total / sums.tokens, sums.squares / sums.tokens
    return WeightSummary(mean, sums.largest, mean**2 / square if square else 0.0, square - 1)

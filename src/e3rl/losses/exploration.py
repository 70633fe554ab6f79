"""Exploration by what the loss does to single tokens: Clip-Cov, KL-Cov, and the 80/20 mask.

A rule looks at all sampled tokens of a batch on all ranks, before the first optimiser step, and
says for each what its surrogate loss is multiplied by and how strongly its policy may move. So the
choice depends on no micro-batch, minibatch or rank. Covariances are taken with the sampler's
log-probs, which cost no forward pass.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.losses.selection import select_top, token_draws
from e3rl.process.distributed import all_max, all_sum

# Whose tokens a rule wants the entropies of, which takes a forward pass over these rollouts.
Entropies = Literal["none", "trained", "all"]


@dataclass(frozen=True)
class BatchTokens:
    """All M sampled tokens of this rank's batch, row by row."""

    advantages: Tensor  # (M,)
    right: Tensor  # (M,) bool, tokens of rollouts with a right answer
    logprobs: Tensor  # (M,) the sampler's, at the sampling temperature
    draws: Tensor  # (M,) uniform, for ties and random choices
    entropies: Tensor | None  # (M,) nats, of the policy before the first step; 0 where not wanted


@dataclass(frozen=True)
class TokenEffects:
    """factor · l + penalty · |ln ρ| takes the place of a token's surrogate loss l."""

    factor: Tensor  # (M,), or (N, T) for a batch
    penalty: Tensor  # the same

    def at(self, rows: Tensor, positions: Tensor) -> "TokenEffects":
        """Those of a micro-batch's tokens: rows (n,), positions (n, t) -> (M,) each."""
        width = positions.shape[1]
        parts = (x[rows, :width][positions] for x in (self.factor, self.penalty))
        return TokenEffects(*parts)


@runtime_checkable
class ExplorationRule(Protocol):
    """Decides about tokens, without state."""

    @property
    def needs_entropy(self) -> Entropies:
        """Rollouts whose tokens' entropies are to be measured before the first step."""

    needs_every_rollout: ClassVar[bool]  # tokens of advantage 0 get a gradient too

    def __call__(self, tokens: BatchTokens) -> tuple[TokenEffects, dict[str, float]]:
        """Effects on each token, and metrics over all ranks by name."""


def explore(
    rule: ExplorationRule, batch: RolloutBatch, entropies: Tensor | None
) -> tuple[TokenEffects, dict[str, float]]:
    """Effects (N, T) of a rule on a batch, and its metrics; entropies are (N, T) or None."""
    mask = batch.tensor("completion_mask")
    tokens = BatchTokens(
        advantages=batch.tensor("advantages")[:, None].expand(mask.shape)[mask],
        right=(batch.tensor("correct") > 0)[:, None].expand(mask.shape)[mask],
        logprobs=batch.tensor("sampler_logprobs")[mask],
        draws=token_draws(batch),
        entropies=None if entropies is None else entropies[mask],
    )
    effects, metrics = rule(tokens)
    tables = []
    for values in (effects.factor, effects.penalty):
        table = torch.zeros(mask.shape, dtype=values.dtype, device=mask.device)
        tables.append(table.masked_scatter(mask, values))
    return TokenEffects(*tables), metrics


class ClipCov:
    """Takes a few tokens of high covariance out of the gradient (arXiv 2505.22617, Clip-Cov).

        cov_t = (A_t - mean A)·(ln π_t - mean ln π)   over all tokens of the batch

    Their mean drives the entropy down. Of the tokens with low < cov < high a share of all M is
    picked at random, at least one token, and its loss set to 0; the normaliser still counts them.
    The published bounds depend on the scale of the advantages: where `exploration/eligible` is
    0, lower them by `exploration/covariance_max`.

    Args:
        share: r in (0, 1) of all tokens.
        low: smallest covariance of a candidate.
        high: largest.
    """

    needs_entropy: ClassVar[Entropies] = "none"
    needs_every_rollout = False

    def __init__(self, share: float = 2e-4, low: float = 1.0, high: float = 5.0) -> None:
        _check_share(share)
        if not low < high:
            raise ValueError(f"exploration.low={low} must lie below exploration.high={high}")
        self.share = share
        self.low = low
        self.high = high

    def __call__(self, tokens: BatchTokens) -> tuple[TokenEffects, dict[str, float]]:
        cov, count, metrics = _covariances(tokens)
        eligible = (cov > self.low) & (cov < self.high)
        chosen = select_top(torch.zeros_like(cov), tokens.draws, eligible, self._number(count))
        touched, candidates = all_sum([int(chosen.sum()), int(eligible.sum())])
        effects = TokenEffects((~chosen).float(), torch.zeros(len(cov), device=cov.device))
        metrics |= {"share": touched / max(1, count), "eligible": candidates / max(1, count)}
        return effects, metrics

    def _number(self, count: int) -> int:
        return max(1, int(self.share * count))


class KLCov:
    """Holds the tokens of highest covariance where they are (arXiv 2505.22617, KL-Cov).

    The share r of all tokens with the largest covariance (see `ClipCov`) gets the penalty
    β·|ln ρ| on top of its loss. Meant for a surrogate without clip. At ρ = 1 the penalty has
    neither value nor gradient, so several optimiser steps per batch are needed.

    Args:
        share: r in (0, 1) of all tokens; the published runs use 2e-3 and 2e-4.
        coef: β > 0.
    """

    needs_entropy: ClassVar[Entropies] = "none"
    needs_every_rollout = True  # tokens of advantage 0 may be among the chosen

    def __init__(self, share: float = 2e-3, coef: float = 1.0) -> None:
        _check_share(share)
        if not 0 < coef < math.inf:
            raise ValueError(f"exploration.coef={coef}: use a number above 0")
        self.share = share
        self.coef = coef

    def __call__(self, tokens: BatchTokens) -> tuple[TokenEffects, dict[str, float]]:
        cov, count, metrics = _covariances(tokens)
        everyone = torch.ones_like(cov, dtype=torch.bool)
        number = max(1, int(self.share * count))
        chosen = select_top(cov, tokens.draws, everyone, number)
        (touched,) = all_sum([int(chosen.sum())])
        effects = TokenEffects(torch.ones(len(cov), device=cov.device), self.coef * chosen.float())
        return effects, metrics | {"share": touched / max(1, count)}


class HighEntropyMask:
    """Trains on the tokens of highest entropy only (arXiv 2506.01939, the 80/20 rule).

    Of the tokens with an advantage the share ρ of highest entropy is kept, ⌈ρM⌉ over all ranks;
    the others have no gradient. Kept tokens take over the weight of the others (factor M / kept),
    as a mean over kept tokens would. Rollouts of advantage 0 have no part in the quota: they
    would fill it with tokens that teach nothing.

    Entropies are those of the policy before the first step: one forward pass more per batch.

    Args:
        share: ρ in (0, 1]; 0.2 is the published one, with gains on large models.
        overlap: also report how much of the quota they would fill, which takes the forward pass
            over them too.
    """

    needs_every_rollout = False

    def __init__(self, share: float = 0.2, overlap: bool = False) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"exploration.share={share} must lie in (0, 1]; 0.2 is published")
        self.share = share
        self.overlap = overlap

    @property
    def needs_entropy(self) -> Entropies:
        return "all" if self.overlap else "trained"

    def __call__(self, tokens: BatchTokens) -> tuple[TokenEffects, dict[str, float]]:
        """Effects, and with tokens of advantage 0 left out of the first three:

        share: kept tokens over all; share_right, share_wrong: the same among the tokens of right
        and of wrong rollouts; entropy_threshold: the lowest entropy kept, nats, 0 where none is;
        overlap: of the ⌈ρM⌉ tokens of highest entropy in all rollouts, the share with advantage 0.
        """
        entropies = tokens.entropies
        if entropies is None:
            raise RuntimeError("the high-entropy mask needs the entropies of the batch's tokens")
        eligible = tokens.advantages != 0
        (teaching,) = all_sum([int(eligible.sum())])
        kept = select_top(entropies, tokens.draws, eligible, math.ceil(self.share * teaching))
        lowest = float(entropies[kept].min()) if bool(kept.any()) else math.inf
        (number,) = all_sum([int(kept.sum())])
        factor = kept.float() * (teaching / max(1.0, number))
        threshold = -all_max(-lowest)
        metrics = {
            "share": number / max(1.0, teaching),
            "share_right": _share(kept, eligible & tokens.right),
            "share_wrong": _share(kept, eligible & ~tokens.right),
            "entropy_threshold": threshold if math.isfinite(threshold) else 0.0,
        }
        if self.overlap:
            metrics["overlap"] = self._overlap(tokens, entropies)
        return TokenEffects(factor, torch.zeros_like(factor)), metrics

    def _overlap(self, tokens: BatchTokens, entropies: Tensor) -> float:
        everyone = torch.ones_like(tokens.right)
        (count,) = all_sum([len(everyone)])
        top = select_top(entropies, tokens.draws, everyone, math.ceil(self.share * count))
        return _share(tokens.advantages == 0, top)


def _share(chosen: Tensor, among: Tensor) -> float:
    """Share of `chosen` tokens among others, both (M,) bool, over all ranks; 0 among none."""
    hits, number = all_sum([int((chosen & among).sum()), int(among.sum())])
    return hits / max(1.0, number)


def _covariances(tokens: BatchTokens) -> tuple[Tensor, int, dict[str, float]]:
    """(M,) float64 products of deviations, tokens on all ranks, mean and largest product."""
    advantages, logprobs = tokens.advantages.double(), tokens.logprobs.double()
    sums = [len(advantages), float(advantages.sum()), float(logprobs.sum())]
    count, advantage, logprob = all_sum(sums)
    number = max(1.0, count)
    cov = (advantages - advantage / number) * (logprobs - logprob / number)
    (total,) = all_sum([float(cov.sum())])
    largest = all_max(float(cov.max()) if len(cov) else -math.inf)
    return cov, int(count), {"covariance": total / number, "covariance_max": largest}


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"exploration.share={share} of all tokens must lie in (0, 1)")

"""How one batch is updated on, and what is counted meanwhile."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.kl import LOG_RATIO_LIMIT, k3
from e3rl.functional.mismatch import WeightSums, summarize_weights
from e3rl.losses.exploration import TokenEffects
from e3rl.losses.micro_batch import MicroBatch
from e3rl.losses.policy_loss import LossParts, PolicyLoss
from e3rl.process.distributed import all_sum_and_max
from e3rl.seeds import derive_seed

Skip = Literal["off", "exact", "renormalise"]
# Of an update's metrics what is added up over ranks.
SUMS = (
    *("tokens", "loss", "clipped", "clipped_high", "divergence", "cut"),
    *("fresh_tokens", "mismatch", "rollouts", "skipped"),
)
EmptyBatch = Literal["step", "skip"]
OldLogprobs = Literal["trainer", "sampler"]


@dataclass(frozen=True)
class TokenInputs:
    """What a loss is told of sampled tokens from before the first optimiser step, where it asks."""

    old_logprobs: Tensor | None  # (N, T), or (M,) of a micro-batch
    effects: TokenEffects | None  # the same
    bonus_shares: Tensor | None  # (N,), or (M,) of a micro-batch
    counts: Tensor | None  # the same

    def at(self, rows: Tensor, micro: MicroBatch) -> "TokenInputs":
        """Those of a micro-batch's tokens, its rollouts being `rows` (n,) of the batch."""
        old, positions = self.old_logprobs, micro.positions

        def spread(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[rows][micro.rollout]

        return TokenInputs(
            None if old is None else old[rows, : positions.shape[1]][positions],
            None if self.effects is None else self.effects.at(rows, positions),
            spread(self.bonus_shares),
            spread(self.counts),
        )


def unequal_counts(batch: RolloutBatch) -> Tensor | None:
    """(N,) how often each rollout counts where some were stopped early, 0 for these; None where
    all count once."""
    weights = batch.weights
    return weights if weights is not None and bool((weights != 1).any()) else None


@dataclass(frozen=True)
class UpdateSettings:
    """Everything about an update that is not the objective.

    Args:
        minibatches: optimiser steps per pass over the rollouts; no more than there are rollouts.
        inner_epochs: passes over the rollouts of a batch.
        tokens_per_microbatch: tokens of one forward and backward pass: each prompt once and
            completions padded, or rollouts padded where prompts are not shared.
        max_grad_norm: gradient clipping, L2.
        skip_zero_advantage: "exact" leaves out rollouts with advantage 0 where that cannot
            change the gradient (and none where the loss has terms on them), "renormalise" also
            takes them out of every count (another objective), "off" forwards all.
        empty_batch: when every advantage is 0, "step" still takes the (zero-gradient) optimiser
            step, as the unskipped update would (momentum and weight decay move the policy);
            "skip" leaves the optimiser alone, unless the loss has terms on such rollouts.
        nonfinite_steps: optimiser steps in a row that may be left out because their gradient is
            not finite; one more ends the run. Weights and optimiser stay as they were.
        old_logprobs: who says what the old policy's log-probs are. "trainer": the policy before
            the first step; "sampler" (bypass): the engine, so that one importance ratio, clipped
            like any other, covers both what the engine and what the steps changed.
        offload_optimizer: the optimiser's states are in the machine's memory but during its steps
            (as ZeRO-Offload has them, arXiv 2101.06840, whose steps are made there too).
    """

    minibatches: int = 1
    inner_epochs: int = 1
    tokens_per_microbatch: int = 8192
    max_grad_norm: float = 1.0
    skip_zero_advantage: Skip = "exact"
    empty_batch: EmptyBatch = "step"
    old_logprobs: OldLogprobs = "trainer"
    nonfinite_steps: int = 3
    offload_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("minibatches", "inner_epochs", "tokens_per_microbatch"):
            if getattr(self, name) < 1:
                raise ValueError(f"settings.{name}={getattr(self, name)}: use at least 1")
        if self.nonfinite_steps < 0:
            raise ValueError(f"settings.nonfinite_steps={self.nonfinite_steps}: use 0 or more")
        if not self.max_grad_norm > 0:
            raise ValueError(f"settings.max_grad_norm={self.max_grad_norm}: use a number > 0")
        for name, kind in (
            ("skip_zero_advantage", Skip),
            ("empty_batch", EmptyBatch),
            ("old_logprobs", OldLogprobs),
        ):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"settings.{name}={getattr(self, name)!r}: choose one of {get_args(kind)}"
                )

    @property
    def steps_per_batch(self) -> int:
        return self.minibatches * self.inner_epochs

    def check(self, loss: PolicyLoss) -> None:
        """Raise ValueError, with the remedy, where a loss does not go with these settings."""
        if self.old_logprobs == "sampler" and loss.corrects:
            raise ValueError(
                "settings.old_logprobs=sampler has the sampler's probabilities in the importance "
                "ratio already, loss.correction would count them twice: use old_logprobs=trainer "
                "or loss/correction=none"
            )
        if self.skip_zero_advantage == "renormalise" and loss.needs_every_rollout:
            raise ValueError(
                "settings.skip_zero_advantage=renormalise drops rollouts that the entropy bonus, "
                "the KL term or KL-Cov needs: use exact or off, or switch those off"
            )

    def skips(self, loss: PolicyLoss) -> bool:
        """Whether rollouts with advantage 0 are left out."""
        return self.skip_zero_advantage != "off" and not loss.needs_every_rollout

    def passes_over_empty(self, loss: PolicyLoss) -> bool:
        """Whether there is no optimiser step where every advantage is 0."""
        return self.empty_batch == "skip" and not loss.needs_every_rollout


def split_rollouts(batch: RolloutBatch, settings: UpdateSettings) -> Iterator[Tensor]:
    """Rows of each minibatch: the whole batch, or parts shuffled anew in each inner epoch. Parts
    are empty where there are fewer rollouts."""
    for epoch in range(settings.inner_epochs):
        rows = torch.arange(batch.n_rollouts)
        if settings.minibatches > 1:
            seed = derive_seed(*batch.stream, "minibatches", epoch)
            generator = torch.Generator().manual_seed(seed)
            rows = torch.randperm(batch.n_rollouts, generator=generator)
        yield from rows.tensor_split(settings.minibatches)


class UpdateStatistics:
    """Sums over the forwarded tokens of one batch; ranks are added up at the end.

    Args:
        corrects: whether the loss weighs tokens by π_trainer / π_sampler.
    """

    def __init__(self, corrects: bool = False) -> None:
        self.corrects = corrects
        self.tokens = self.loss = self.clipped = self.divergence = self.cut = 0.0
        self.clipped_high = 0.0  # of the clipped tokens those above their bound
        self.fresh_tokens = self.mismatch = self.mismatch_max = 0.0
        self.rollouts = self.skipped = self.steps = self.grad_norm = 0.0
        self.nonfinite = 0.0  # optimiser steps that were left out
        self.mismatch_weights = WeightSums()  # of single tokens, whatever the correction
        self.correction_weights = WeightSums()  # in effect

    def add(self, parts: LossParts, sampler_logprobs: Tensor, first: bool) -> None:
        """Count a micro-batch; `first` = its policy is still the one before the first step."""
        self.tokens += len(parts.logprobs)
        self.loss += float(parts.loss.detach())
        self.clipped += float(parts.clipped.sum())
        self.clipped_high += float(parts.clipped_above.sum())
        # The tokens are the old policy's, so its log-probs go first: KL(old‖new).
        self.divergence += float(k3(parts.log_ratios * 0, parts.log_ratios).sum())
        if parts.correction is not None:
            self.cut += float(parts.correction.cut.sum())
            self.correction_weights.add(parts.correction.weights)
        if first:
            self.fresh_tokens += len(parts.logprobs)
            gap = (parts.logprobs - sampler_logprobs).double()
            self.mismatch += float(k3(gap * 0, gap).sum())
            self.mismatch_max = max(self.mismatch_max, float(gap.abs().max()))
            self.mismatch_weights.add(gap.clamp(max=LOG_RATIO_LIMIT).exp())

    def metrics(self, learning_rate: float) -> dict[str, float]:
        """Means over all ranks, under `policy/`.

        clip_fraction splits into tokens clipped above (A > 0, or the dual clip) and below, by the
        ratio that was bounded, be it the token's or its rollout's; these clips lower and raise
        entropy in opposite ways (arXiv 2509.26114). Of optimiser steps that were left out nothing
        is counted but their rollouts.
        mismatch_ metrics compare trainer and sampler token by token, before the first step;
        correction_ metrics describe the weights that multiplied the losses. Both are about the
        forwarded tokens, which are not all where rollouts are skipped.
        """
        total, mismatch_max, (of_mismatch, of_correction) = self._over_ranks()
        tokens = max(1.0, total["tokens"])
        weights = summarize_weights(of_mismatch)
        metrics = {
            "policy/loss": total["loss"] / max(1.0, self.steps),
            "policy/clip_fraction": total["clipped"] / tokens,
            "policy/clip_fraction_high": total["clipped_high"] / tokens,
            "policy/clip_fraction_low": (total["clipped"] - total["clipped_high"]) / tokens,
            "policy/approx_kl": total["divergence"] / tokens,
            "policy/mismatch_kl": total["mismatch"] / max(1.0, total["fresh_tokens"]),
            "policy/mismatch_max": mismatch_max,
            "policy/mismatch_weight": weights.mean,
            "policy/mismatch_weight_max": weights.largest,
            "policy/mismatch_ess": weights.ess,
            "policy/mismatch_chi2": weights.chi2,
            "policy/skipped": total["skipped"] / max(1.0, total["rollouts"]),
            "policy/grad_norm": self.grad_norm / max(1.0, self.steps),
            "policy/optimizer_steps": self.steps,
            "policy/nonfinite_steps": self.nonfinite,
            "policy/lr": learning_rate,
        }
        if self.corrects:
            weights = summarize_weights(of_correction)
            metrics |= {
                "policy/correction_weight": weights.mean,
                "policy/correction_weight_max": weights.largest,
                "policy/correction_ess": weights.ess,
                "policy/correction_cut": total["cut"] / tokens,
            }
        return metrics

    def _over_ranks(self) -> tuple[dict[str, float], float, list[WeightSums]]:
        """Sums by name, the largest mismatch, and both kinds of weights, by one message."""
        both = (self.mismatch_weights, self.correction_weights)
        of_weights = [x for each in both for x in (each.tokens, each.total, each.squares)]
        sums, (mismatch_max, *largest) = all_sum_and_max(
            [*(getattr(self, name) for name in SUMS), *of_weights],
            [self.mismatch_max, *(each.largest for each in both)],
        )
        weights = [
            WeightSums(count, total, squares, most)
            for count, total, squares, most in zip(
                sums[-6::3], sums[-5::3], sums[-4::3], largest, strict=True
            )
        ]
        return dict(zip(SUMS, sums[:-6], strict=True)), mismatch_max, weights

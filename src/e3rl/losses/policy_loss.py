"""The policy objective: a surrogate, an aggregation, and two optional terms.

loss = Σ_tokens w · c · l(ρ, A)  −  λ · mean_tokens H(π_τ)  +  β · mean_tokens KL(π ‖ π_ref)

with c = 1, or the importance weight of a correction (`functional/mismatch.py`). A rule of
`losses/exploration.py` replaces l by factor · l + penalty · |ln ρ|. Where rollouts were stopped
early, H, KL and |ln ρ| count as often as their rollouts, as A does already.

Every weight is made from counts of the whole minibatch on all ranks, so the sum over micro-batches
does not depend on how they were cut.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor

from e3rl.checkpoints.strict_state import require_keys
from e3rl.functional.aggregation import Aggregation, PromptWeight, Totals, rollout_weights
from e3rl.functional.kl import k3
from e3rl.functional.mismatch import Correction
from e3rl.functional.surrogates import Surrogate, SurrogateInput
from e3rl.losses.entropy_bonus import MovingEntropyBonus
from e3rl.losses.exploration import ExplorationRule, TokenEffects
from e3rl.losses.micro_batch import MicroBatch


@dataclass(frozen=True)
class LossParts:
    """A micro-batch's share of the loss, and what its tokens tell about the update."""

    loss: Tensor  # scalar, with gradient
    logprobs: Tensor  # (M,) detached
    log_ratios: Tensor  # (M,) detached, against the old policy
    clipped: Tensor  # (M,) bool
    clipped_above: Tensor  # (M,) bool, those of them whose ratio was above its bound
    correction: Correction | None = None  # what multiplied the surrogate's losses


class PolicyLoss:
    """Composable objective of GRPO and its relatives.

    Args:
        surrogate: `SurrogateInput -> Surrogate`, from `functional/surrogates.py`.
        aggregation: how token losses become one number (`functional/aggregation.py`).
        prompt_weight: "sample" weighs a prompt by its rollouts, "prompt" undoes unequal budgets.
        max_length: L_max of the aggregation "constant" (Dr. GRPO), in tokens.
        entropy_coef: λ ≥ 0, the entropy bonus (the ER baseline of arXiv 2505.18573, eq. 3), or a
            rule that moves it.
        kl_coef: β ≥ 0, weight of the k3 estimate of the divergence from the initial policy.
        correction: (log-ratios trainer over sampler (M,), rollouts (M,)) -> Correction, from
            `functional/mismatch.py`; None = tokens count as if the trainer had sampled them.
        exploration: what is done to the losses of single tokens; None = nothing.

    Raises ValueError for anything out of range, the surrogate's settings included.
    """

    def __init__(
        self,
        surrogate: Callable[[SurrogateInput], Surrogate],
        aggregation: Aggregation = "token_mean",
        prompt_weight: PromptWeight = "sample",
        max_length: int | None = None,
        entropy_coef: float | MovingEntropyBonus = 0.0,
        kl_coef: float = 0.0,
        correction: Callable[[Tensor, Tensor], Correction] | None = None,
        exploration: ExplorationRule | None = None,
    ) -> None:
        for name, value in (("entropy_coef", entropy_coef), ("kl_coef", kl_coef)):
            if isinstance(value, float | int) and not 0 <= value < math.inf:
                raise ValueError(f"loss.{name}={value}: use 0 (off) or a positive weight")
        for choice, given, kind in (
            ("aggregation", aggregation, Aggregation),
            ("prompt_weight", prompt_weight, PromptWeight),
        ):
            if given not in get_args(kind):
                raise ValueError(f"loss.{choice}={given!r}: choose one of {get_args(kind)}")
        if aggregation == "constant" and (max_length is None or max_length < 1):
            raise ValueError(
                f"loss.aggregation=constant needs loss.max_length (tokens), got {max_length}"
            )
        nothing = torch.zeros(1)
        surrogate(SurrogateInput(nothing, nothing, nothing, nothing.long()))  # refuses bad settings
        if correction is not None:
            correction(nothing, nothing.long())
        self.surrogate = surrogate
        self.aggregation: Aggregation = aggregation
        self.prompt_weight: PromptWeight = prompt_weight
        self.max_length = max_length
        self.kl_coef = kl_coef
        self.correction = correction
        self.exploration = exploration
        self._entropy_coef = entropy_coef

    @property
    def corrects(self) -> bool:
        """Whether token losses are weighted by π_trainer / π_sampler."""
        return self.correction is not None

    @property
    def needs_every_rollout(self) -> bool:
        """Whether rollouts with advantage 0 have a gradient too (so must not be skipped)."""
        explores = self.exploration is not None and self.exploration.needs_every_rollout
        return self.adapts or self.entropy_coef > 0 or self.kl_coef > 0 or explores

    @property
    def entropy_coef(self) -> float:
        """λ of the present batch."""
        given = self._entropy_coef
        return given.value if isinstance(given, MovingEntropyBonus) else given

    @property
    def adapts(self) -> bool:
        """Whether λ moves with the entropy, which then has to be shown to `observe`."""
        return isinstance(self._entropy_coef, MovingEntropyBonus)

    def observe(self, entropy: float) -> dict[str, float]:
        """Move λ by a batch's sampled entropy (nats per token, all ranks); metrics by name."""
        if not isinstance(self._entropy_coef, MovingEntropyBonus):
            return {}
        self._entropy_coef.observe(entropy)
        return self._entropy_coef.metrics()

    def bonus_shares(self, accuracies: Tensor) -> Tensor | None:
        """(N,) parts of λ that rollouts get, by the share of right ones in their group (N,); None
        where all get λ."""
        given = self._entropy_coef
        return given.shares(accuracies) if isinstance(given, MovingEntropyBonus) else None

    def state_dict(self) -> dict[str, Any]:
        """Builtins only; empty where nothing moves."""
        given = self._entropy_coef
        return {"entropy_coef": given.state_dict()} if isinstance(given, MovingEntropyBonus) else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: state of another loss raises ValueError."""
        require_keys("loss", state, self.state_dict())
        if isinstance(self._entropy_coef, MovingEntropyBonus):
            self._entropy_coef.load_state_dict(state["entropy_coef"])

    @property
    def by_prompt(self) -> bool:
        """Whether every prompt counts alike, whatever its budget."""
        return self.prompt_weight == "prompt" or self.aggregation == "prompt_mean"

    def weights(self, lengths: Tensor, totals: Totals, factors: Tensor | None) -> Tensor:
        """(N,) weight of each token of a rollout; see `rollout_weights`."""
        return rollout_weights(
            self.aggregation, lengths, totals, factors, max_length=self.max_length
        )

    def __call__(
        self,
        micro: MicroBatch,
        weights: Tensor,
        totals: Totals,
        old_logprobs: Tensor | None = None,
        reference_logprobs: Tensor | None = None,
        effects: TokenEffects | None = None,
        bonus_shares: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> LossParts:
        """This micro-batch's summand of the loss over `totals`.

        Args:
            micro: M tokens with log-probs, and entropies where `entropy_coef` > 0.
            weights: (M,) weight of each token's surrogate.
            totals: counts of the whole minibatch on all ranks.
            old_logprobs: (M,) before the first step; None = this very policy: every ratio is 1.
            reference_logprobs: (M,) of the reference policy, where `kl_coef` > 0.
            effects: (M,) what the exploration rule does to each token.
            bonus_shares: (M,) parts of the entropy bonus's weight; None = all of it everywhere.
            counts: (M,) how often a token's rollout counts in all but the surrogate, whose
                advantages have it in them; None = once.
        """
        logprobs, correction = micro.logprobs, None
        old = logprobs.detach() if old_logprobs is None else old_logprobs
        log_ratios = logprobs - old
        inputs = SurrogateInput(log_ratios, logprobs, micro.advantages, micro.rollout)
        surrogate = self.surrogate(inputs)
        if self.correction is not None:
            correction = self.correction(old - micro.sampler_logprobs, micro.rollout)
            weights = weights * correction.weights
        losses = surrogate.loss
        if effects is not None:
            losses = effects.factor * losses + _counted(effects.penalty * log_ratios.abs(), counts)
        loss = (weights * losses).sum()
        if self.entropy_coef:
            bonus = _counted(self._rewarded(micro, bonus_shares), counts)
            loss = loss - self.entropy_coef * bonus.sum() / totals.tokens
        if self.kl_coef:
            divergences = _counted(_divergences(logprobs, reference_logprobs), counts)
            loss = loss + self.kl_coef * divergences.sum() / totals.tokens
        marks, above = surrogate.clipped, surrogate.above
        above = marks & (log_ratios > 0) if above is None else above
        return LossParts(loss, logprobs.detach(), log_ratios.detach(), marks, above, correction)

    def _rewarded(self, micro: MicroBatch, shares: Tensor | None) -> Tensor:
        """(M,) entropies of which the bonus is made."""
        if micro.entropies is None:
            raise RuntimeError("loss.entropy_coef > 0 needs the entropies of the tokens")
        return micro.entropies if shares is None else shares * micro.entropies


def _counted(values: Tensor, counts: Tensor | None) -> Tensor:
    """(M,) of tokens, as often as their rollouts count."""
    return values if counts is None else counts * values


def _divergences(logprobs: Tensor, reference: Tensor | None) -> Tensor:
    """(M,) of the policy from the reference. Raises RuntimeError where there is none."""
    if reference is None:
        raise RuntimeError("loss.kl_coef > 0 needs the reference policy's log-probs")
    return k3(logprobs, reference)

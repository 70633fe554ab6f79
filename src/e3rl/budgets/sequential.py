"""Rollouts in rounds: a prompt leaves as soon as it has shown enough, the rest go on."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, MemorylessBudget
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.rounds import Rounds
from e3rl.statistics.apportion import Counts, Reals, water_fill


class Sequential(MemorylessBudget):
    """Up to `max_rounds` rounds of `per_round` rollouts for every prompt that is not done.

    A prompt is done with

    - `balanced`: at least ⌊K/2⌋ right and K - ⌊K/2⌋ wrong rollouts, K = `wanted`
      (Reinforce-Ada, arXiv 2510.04996);
    - `positive`: one right rollout (its positive variant; also AR3PO, arXiv 2509.25808).

    The step's total is a cap. A round that would exceed it is cut, the last rollouts going to
    prompts drawn anew each step, and what no prompt needs stays unspent. It asks for no history,
    and works from the first step on.

    All rollouts of a prompt are trained on, with an advantage from all of them; the published
    method draws K of them for the update, and takes the baseline from all. Reuse of stored right
    answers (AR3PO's second half) would need rollouts of an older policy in the batch: not here.

    Args:
        exit_rule: `balanced` or `positive`.
        per_round: rollouts per prompt and round, at least 2; below rollouts_per_prompt, or nothing
            is left to move.
        max_rounds: a prompt gets at most per_round times this.
        wanted: K of `balanced`, at least 2.
        seed: what the draw of the last rollouts derives from.
    """

    def __init__(
        self,
        exit_rule: Literal["balanced", "positive"] = "balanced",
        per_round: int = 4,
        max_rounds: int = 4,
        wanted: int = 4,
        seed: int = 0,
    ) -> None:
        if exit_rule not in ("balanced", "positive"):
            raise ValueError(f"exit_rule={exit_rule!r}: use 'balanced' or 'positive'")
        if per_round < 2:
            raise ValueError(
                f"per_round={per_round}: use at least 2, a single rollout has no advantage"
            )
        if max_rounds < 2:
            raise ValueError(f"max_rounds={max_rounds}: one round is uniform, use at least 2")
        if wanted < 2:
            raise ValueError(f"wanted={wanted}: use at least 2, one right and one wrong rollout")
        self.exit_rule = exit_rule
        self.per_round = per_round
        self.max_rounds = max_rounds
        self.wanted = wanted
        self.seed = seed

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step, with the metrics of `Rounds` and:

        unresolved: share of prompts that were not done when the rounds or the rollouts ended.

        Raises ValueError where `total` does not hold the first round.
        """
        n = len(prompt_ids)
        if total < n * self.per_round:
            raise ValueError(
                f"{total} rollouts for {n} prompts do not hold a first round of per_round="
                f"{self.per_round} each: lower it or raise rollouts_per_prompt"
            )
        keys = prompt_keys(self.seed, step, prompt_ids)

        def more(rollouts: Counts, right: Reals, left: int) -> Counts:
            full = rollouts >= self.per_round * self.max_rounds
            need = np.where(self.done(rollouts, right) | full, 0, self.per_round)
            need = np.minimum(need, self.per_round * self.max_rounds - rollouts)
            return water_fill(np.ones(n), min(left, int(need.sum())), 0, need, keys)

        def outcome(rollouts: Counts, right: Reals) -> dict[str, float]:
            return {"unresolved": 1 - float(self.done(rollouts, right).mean())}

        bounds = self.per_round, self.per_round * self.max_rounds
        return Decision(Rounds(total, more, bounds, outcome), np.full(n, np.nan))

    def done(self, rollouts: Counts, right: Reals) -> NDArray[np.bool_]:
        """(B,) whether prompts need no further rollout."""
        if self.exit_rule == "positive":
            return right >= 1
        positives = self.wanted // 2
        return (right >= positives) & (rollouts - right >= self.wanted - positives)

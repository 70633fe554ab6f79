"""A few rollouts of every prompt, then the rest for those that were neither easy nor hopeless."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, MemorylessBudget
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.rounds import Rounds
from e3rl.statistics.apportion import Counts, Reals, water_fill


class PilotCommit(MemorylessBudget):
    """`pilot` rollouts of every prompt; what is left goes to those with lowest <= p̂ <= highest,

    in equal parts and at most `commit` each, p̂ being the share of right pilots (Pilot-Commit,
    arXiv 2605.26606). Pilots stay in their groups. What no prompt may take stays unspent, so that
    the step's total is a cap; it asks for no history, and works from the first step on.

    What differs from Pilot-Commit: it screens three candidates for every prompt of a batch and
    fills the batch over steps from a buffer of surviving pilots, up to four steps old; here a step
    has its own prompts, and every rollout is the present policy's. It never samples a prompt again
    whose pilots were all right; here such a prompt comes again in the next pass, since four right
    pilots are no proof.

    Args:
        pilot: rollouts of every prompt, at least 2 and below rollouts_per_prompt; published: 16
            and 32.
        commit: further rollouts of a prompt at most; published: three times the pilots.
        lowest, highest: shares of right pilots between which a prompt gets more, ends included;
            published: 1/8 and 3/4.
        seed: what tie-breaks derive from.
    """

    def __init__(
        self,
        pilot: int = 4,
        commit: int = 12,
        lowest: float = 0.125,
        highest: float = 0.75,
        seed: int = 0,
    ) -> None:
        if pilot < 2:
            raise ValueError(f"pilot={pilot}: use at least 2, a single rollout has no advantage")
        if commit < 1:
            raise ValueError(f"commit={commit}: without further rollouts use the budget `uniform`")
        if not 0 <= lowest <= highest <= 1:
            raise ValueError(
                f"lowest={lowest} and highest={highest} must be shares with lowest <= highest"
            )
        self.pilot = pilot
        self.commit = commit
        self.lowest = lowest
        self.highest = highest
        self.seed = seed

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step, with the metrics of `Rounds` and:

        committed: share of prompts that got more than their pilots.

        Raises ValueError where `total` does not hold the pilots.
        """
        n = len(prompt_ids)
        if total < n * self.pilot:
            raise ValueError(
                f"{total} rollouts for {n} prompts do not hold pilot={self.pilot} each: lower it "
                "or raise rollouts_per_prompt"
            )
        keys = prompt_keys(self.seed, step, prompt_ids)

        def more(rollouts: Counts, right: Reals, left: int) -> Counts:
            if not rollouts.any():
                return np.full(n, self.pilot, dtype=np.int64)
            room = np.where(self.commits(rollouts, right), self.commit, 0)
            if allocation.rounds > 1:
                room[:] = 0
            return water_fill(np.ones(n), min(left, int(room.sum())), 0, room, keys)

        allocation = Rounds(total, more, (self.pilot, self.pilot + self.commit), self._outcome)
        return Decision(allocation, np.full(n, np.nan))

    def commits(self, rollouts: Counts, right: Reals) -> NDArray[np.bool_]:
        """(B,) whether prompts with `right` of so many pilots get more."""
        share = right / rollouts
        chosen: NDArray[np.bool_] = (share >= self.lowest) & (share <= self.highest)
        return chosen

    def _outcome(self, rollouts: Counts, right: Reals) -> dict[str, float]:
        return {"committed": float((rollouts > self.pilot).mean())}

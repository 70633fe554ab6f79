"""Whole groups, prompt by prompt, until enough of them are mixed."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, MemorylessBudget
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.rounds import Rounds
from e3rl.statistics.apportion import Counts, Reals


class DynamicSampling(MemorylessBudget):
    """Samples groups of G = ⌊total/B⌋ until w·B of the step's B candidates are mixed, in rounds.

    DAPO's dynamic sampling (arXiv 2503.14476) within a step: the first round takes w·B candidates,
    each further one as many as mixed groups are missing, in an order drawn anew each step. It ends
    early, never with an error, when `max_rounds` are over or no candidate is left; every group that
    was sampled stays in the batch, silent ones with advantages of 0. Set prompts_per_step to 1/w
    times the groups that are wanted; total is a cap that only a step without enough mixed groups
    reaches.

    Candidates that were not reached come first in the steps that follow (`leftovers=requeue`):
    a prompt comes again only once all others of its pass were sampled or are waiting. Such a pass
    takes more steps than an epoch, which stays as long as it is. With `next_pass` they are given
    up until the next pass, and a pass samples other prompts each time.

    What differs from DAPO: mixed groups beyond w·B do not occur, as each round asks for no more
    than what is missing, so no finished group is thrown away.

    Args:
        wanted_share: w in (0, 1), mixed groups to look for as a share of the candidates.
        max_rounds: rounds of sampling at most.
        leftovers: `requeue` or `next_pass`, what becomes of candidates that were not reached.
        seed: what the order of the candidates derives from.
    """

    def __init__(
        self,
        wanted_share: float = 0.5,
        max_rounds: int = 10,
        leftovers: Literal["requeue", "next_pass"] = "requeue",
        seed: int = 0,
    ) -> None:
        if not 0 < wanted_share < 1:
            raise ValueError(
                f"wanted_share={wanted_share}: use a share between 0 and 1; with 1 every candidate "
                "is sampled, which is the budget `uniform`"
            )
        if max_rounds < 1:
            raise ValueError(f"max_rounds={max_rounds}: use at least 1")
        if leftovers not in ("requeue", "next_pass"):
            raise ValueError(f"leftovers={leftovers!r}: use 'requeue' or 'next_pass'")
        self.wanted_share = wanted_share
        self.max_rounds = max_rounds
        self.leftovers = leftovers
        self.seed = seed

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step, with the metrics of `Rounds` and:

        reached: share of the candidates that were sampled; kept: share of those that were mixed.

        Raises ValueError where `total` is less than two rollouts a prompt.
        """
        n = len(prompt_ids)
        group = total // n
        if group < 2:
            raise ValueError(
                f"{total} rollouts for {n} prompts make groups of {group}, which are never mixed: "
                "use rollouts_per_prompt of at least 2"
            )
        wanted = max(1, round(self.wanted_share * n))
        order = np.argsort(prompt_keys(self.seed, step, prompt_ids))

        def more(rollouts: Counts, right: Reals, left: int) -> Counts:
            missing = wanted - int(_mixed(rollouts, right).sum())
            counts = np.zeros_like(rollouts)
            if allocation.rounds < self.max_rounds and missing > 0:
                counts[order[rollouts[order] == 0][:missing]] = group
            return counts

        allocation = Rounds(total, more, (0, group), _outcome)
        return Decision(allocation, np.full(n, np.nan), requeue=self.leftovers == "requeue")


def _mixed(rollouts: Counts, right: Reals) -> NDArray[np.bool_]:
    mixed: NDArray[np.bool_] = (right > 0) & (right < rollouts)
    return mixed


def _outcome(rollouts: Counts, right: Reals) -> dict[str, float]:
    reached = rollouts > 0
    return {
        "reached": float(reached.mean()),
        "kept": float(_mixed(rollouts, right).sum() / reached.sum()),
    }

"""The skeleton of selectors: a share of the step's candidates gets all rollouts, evenly."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from e3rl.budgets.base import Decision
from e3rl.budgets.history import VisitCounts
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.posterior_budget import PosteriorBudget
from e3rl.statistics.apportion import Counts, Reals, water_fill


class SelectionBudget(PosteriorBudget):
    """Of B candidates, the w·B of the largest worth share `total` evenly, total/(w·B) each.

    The others get no rollout in this pass over the prompts: set prompts_per_step to 1/w times the
    groups that are wanted, and rollouts_per_prompt to w times the wanted group size. They are not
    handed back to the loader, or the next steps' candidates would be those that were refused.

    A prompt that is left out does not change, so a decay below 1 forgets by visits, not by time.

    Args:
        selected_share: w in (0, 1).
        prior, decay, seed: as in `PosteriorBudget`.
    """

    def __init__(
        self, selected_share: float, prior: tuple[float, float], decay: float, seed: int
    ) -> None:
        super().__init__(prior, decay, seed)
        if not 0 < selected_share < 1:
            raise ValueError(
                f"selected_share={selected_share}: use a share between 0 and 1; with 1 every "
                "prompt is selected, which is the budget `uniform`"
            )
        self.selected_share = selected_share

    @abstractmethod
    def worth(
        self, prompt_ids: Sequence[str], known: VisitCounts, order: Counts, step: int
    ) -> Reals:
        """(B,) what candidates are chosen by, the largest first; equal ones are drawn.

        `order` (B,) are the rows of the candidates by their hashes: random numbers are to be drawn
        in it, so that a draw belongs to a prompt and not to its place.
        """

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step.

        Raises ValueError where a selected prompt would get less than two rollouts.
        """
        selected = max(1, round(self.selected_share * len(prompt_ids)))
        if total < 2 * selected:
            raise ValueError(
                f"{total} rollouts for {selected} selected prompts are fewer than two each: raise "
                "rollouts_per_prompt or lower selected_share"
            )
        known = self._history.of(prompt_ids)
        keys = prompt_keys(self.seed, step, prompt_ids)
        order = np.argsort(keys)
        worth = self.worth(prompt_ids, known, order, step)
        chosen = order[np.argsort(-worth[order], kind="stable")[:selected]]
        n_min, n_max = total // selected, -(-total // selected)
        counts = np.zeros(len(prompt_ids), dtype=np.int64)
        counts[chosen] = water_fill(np.ones(selected), total, n_min, n_max, keys[chosen])
        unseen = float((known.rollouts[chosen] == 0).mean())
        return self.allocate_once(known, counts, n_min, n_max, selected_unseen=unseen)

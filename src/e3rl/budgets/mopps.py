"""Rollouts for the prompts that are believed to be neither too easy nor too hard."""

from collections.abc import Sequence

import numpy as np

from e3rl.budgets.base import Allocation
from e3rl.budgets.believing import BelievingBudget
from e3rl.budgets.keys import prompt_keys
from e3rl.seeds import derive_seed
from e3rl.statistics.apportion import water_fill


class Mopps(BelievingBudget):
    """Of B candidates, the w·B with the smallest (sᵢ - target)², sᵢ drawn from Beta(aᵢ, bᵢ).

    MoPPS (arXiv 2507.04632) selects prompts before any rollout; by drawing from the posterior and
    not taking its mean, prompts that were seen little, or long ago, get their chance. The selected
    share `total` evenly, total/(w·B) each, the others get none in this pass over the prompts: set
    prompts_per_step to 1/w times the groups that are wanted, and rollouts_per_prompt to w times
    the wanted group size.

    Args:
        selected_share: w in (0, 1).
        target: pass rate to look for; at 1/2 a 0/1 reward varies most.
        prior, decay, seed: as in `BelievingBudget`. A prompt that is left out does not change, so
            a decay below 1 forgets by visits, not by time.
    """

    def __init__(
        self,
        selected_share: float = 0.5,
        target: float = 0.5,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(prior, decay, seed)
        if not 0 < selected_share < 1:
            raise ValueError(
                f"selected_share={selected_share}: use a share between 0 and 1; with 1 every "
                "prompt is selected, which is the budget `uniform`"
            )
        if not 0 <= target <= 1:
            raise ValueError(f"target={target}: pass rates lie in [0, 1]")
        self.selected_share = selected_share
        self.target = target

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Allocation:
        """Plan of a step; raises ValueError where a selected prompt would get less than two."""
        selected = max(1, round(self.selected_share * len(prompt_ids)))
        if total < 2 * selected:
            raise ValueError(
                f"{total} rollouts for {selected} selected prompts are fewer than two each: raise "
                "rollouts_per_prompt or lower selected_share"
            )
        known = self._history.of(prompt_ids)
        posterior = known.posterior(self.prior)
        keys = prompt_keys(self.seed, step, prompt_ids)
        # In the order of the keys, so that a draw belongs to a prompt and not to its place.
        order = np.argsort(keys)
        generator = np.random.default_rng(derive_seed(self.seed, "mopps", step))
        drawn = generator.beta(posterior.a[order], posterior.b[order])
        chosen = order[np.argsort((drawn - self.target) ** 2, kind="stable")[:selected]]
        n_min, n_max = total // selected, -(-total // selected)
        counts = np.zeros(len(prompt_ids), dtype=np.int64)
        counts[chosen] = water_fill(np.ones(selected), total, n_min, n_max, keys[chosen])
        return self.allocation(known, counts, n_min, n_max)

"""Rollouts for the prompts that are believed to be neither too easy nor too hard."""

from collections.abc import Sequence

import numpy as np

from e3rl.budgets.history import VisitCounts
from e3rl.budgets.selection import SelectionBudget
from e3rl.seeds import derive_seed
from e3rl.statistics.apportion import Counts, Reals


class Mopps(SelectionBudget):
    """Of B candidates, the w·B with the smallest (sᵢ - target)², sᵢ drawn from Beta(aᵢ, bᵢ).

    MoPPS (arXiv 2507.04632) selects prompts before any rollout; by drawing from the posterior and
    not taking its mean, prompts that were seen little, or long ago, get their chance.

    Args:
        selected_share: w in (0, 1), as in `SelectionBudget`.
        target: pass rate to look for; at 1/2 a 0/1 reward varies most.
        prior, decay, seed: as in `SelectionBudget`.
    """

    def __init__(
        self,
        selected_share: float = 0.5,
        target: float = 0.5,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(selected_share, prior, decay, seed)
        if not 0 <= target <= 1:
            raise ValueError(f"target={target}: pass rates lie in [0, 1]")
        self.target = target

    def worth(
        self, prompt_ids: Sequence[str], known: VisitCounts, order: Counts, step: int
    ) -> Reals:
        """(B,) -(sᵢ - target)²."""
        posterior = known.posterior(self.prior)
        generator = np.random.default_rng(derive_seed(self.seed, "mopps", step))
        drawn = np.empty(len(prompt_ids))
        drawn[order] = generator.beta(posterior.a[order], posterior.b[order])
        return -((drawn - self.target) ** 2)

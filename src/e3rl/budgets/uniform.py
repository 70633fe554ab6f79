"""The control rule: every prompt gets the same number of rollouts."""

from collections.abc import Sequence

import numpy as np

from e3rl.budgets.base import Decision, MemorylessBudget, SingleRound
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.metrics import allocation_metrics
from e3rl.statistics.apportion import water_fill


class Uniform(MemorylessBudget):
    """nᵢ = total/B for every prompt; a remainder goes to prompts drawn anew each step.

    It learns nothing, so it has no ranks (all NaN) and no state.

    Args:
        seed: what the draw of the remainder derives from.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step; counts differ by at most 1. Its metrics: `allocation_metrics`."""
        n = len(prompt_ids)
        n_min, n_max = total // n, -(-total // n)
        keys = prompt_keys(self.seed, step, prompt_ids)
        counts = water_fill(np.ones(n), total, n_min, n_max, keys)
        allocation = SingleRound(counts, allocation_metrics(counts, n_min, n_max))
        return Decision(allocation, np.full(n, np.nan))

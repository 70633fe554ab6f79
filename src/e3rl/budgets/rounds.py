"""An allocation of several rounds under a cap, each decided from the rewards of those before it."""

from collections.abc import Callable

import numpy as np

from e3rl.budgets.base import StepProgress
from e3rl.budgets.metrics import allocation_metrics
from e3rl.statistics.apportion import Counts, Reals

# (rollouts (B,), right ones (B,), what is left to spend) -> rollouts to add (B,).
More = Callable[[Counts, Reals, int], Counts]
# (rollouts (B,), right ones (B,)) of the finished step -> metrics of a rule, beyond those of all.
Outcome = Callable[[Counts, Reals], dict[str, float]]


class Rounds:
    """Asks for more until there is nothing left to add, and keeps the record of the step.

    Stopping when enough was seen biases the share of right rollouts of a group; only the first
    round's accuracy is a fair estimate of the policy's.

    Args:
        cap: rollouts that may be spent.
        more: what to add; all zeros end the step. It must add up to at most what is left.
        bounds: (n_min, n_max) that counts are reported beside.
        outcome: metrics of the rule.
    """

    def __init__(
        self, cap: int, more: More, bounds: tuple[int, int], outcome: Outcome | None = None
    ) -> None:
        self.cap = cap
        self.bounds = bounds
        self._more = more
        self._outcome = outcome
        self.rollouts = np.zeros(0, dtype=np.int64)
        self.right = np.zeros(0)
        self.rounds = 0
        self._first_accuracy = float("nan")
        self._last_active = 0.0

    def next(self, batch: StepProgress) -> list[int] | None:
        self.rollouts, self.right = batch.tally()
        if self.rounds == 1:
            sampled = self.rollouts > 0
            self._first_accuracy = float((self.right[sampled] / self.rollouts[sampled]).mean())
        counts = self._more(self.rollouts, self.right, self.cap - int(self.rollouts.sum()))
        if not counts.any():
            return None
        self.rounds += 1
        self._last_active = float((counts > 0).mean())
        added: list[int] = counts.tolist()
        return added

    def metrics(self) -> dict[str, float]:
        """Counts of the finished step as in `allocation_metrics`, those of the rule, and:

        cap: rollouts that might have been spent; spent_share: what was, as a share of it;
        rounds: how many there were; last_active: share of prompts in the last one;
        first_accuracy: mean accuracy of the prompts in the first round.
        """
        metrics = allocation_metrics(self.rollouts, *self.bounds) | {
            "cap": float(self.cap),
            "spent_share": float(self.rollouts.sum() / self.cap),
            "rounds": float(self.rounds),
            "last_active": self._last_active,
            "first_accuracy": self._first_accuracy,
        }
        if self._outcome is not None:
            metrics |= self._outcome(self.rollouts, self.right)
        return metrics

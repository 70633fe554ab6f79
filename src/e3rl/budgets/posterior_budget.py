"""The skeleton of rules that hold beliefs about pass rates: learning, state and metrics."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, SingleRound
from e3rl.budgets.history import RewardHistory, VisitCounts, reward_sums
from e3rl.budgets.metrics import allocation_metrics, outcome_metrics
from e3rl.budgets.posterior import check_prior
from e3rl.checkpoints.strict_state import require_keys
from e3rl.statistics.apportion import Counts


class PosteriorBudget(ABC):
    """Keeps the Beta posterior of every prompt's pass rate; a subclass decides by it.

    Args:
        prior: Beta prior (a₀, b₀) of a pass rate.
        decay: weight of earlier visits at each new one.
        seed: what tie-breaks derive from.
    """

    def __init__(self, prior: tuple[float, float], decay: float, seed: int) -> None:
        self.prior = check_prior(prior)
        self.seed = seed
        self._history = RewardHistory(decay)
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step."""

    def allocate_once(
        self, known: VisitCounts, counts: Counts, n_min: int, n_max: int, **metrics: float
    ) -> Decision:
        """An allocation of one round, with those of `allocation_metrics`, the given metrics, and:

        unsolved_share: share of its rollouts on prompts seen before and never solved until then.
        """
        unsolved = float(counts[known.never_solved].sum() / counts.sum())
        spread = allocation_metrics(counts, n_min, n_max)
        allocation = SingleRound(counts, spread | {"unsolved_share": unsolved} | metrics)
        ranks = self._history.ranks(known)
        return Decision(allocation, ranks, always_right=known.always_solved)

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Compare a step's rewards with what was believed, then learn them."""
        visits = reward_sums(prompt_ids, rewards)
        self._metrics = self.compare(self._history.of(prompt_ids), visits)
        self.learn(prompt_ids, visits)

    def compare(self, known: VisitCounts, visits: VisitCounts) -> dict[str, float]:
        """Metrics of a finished step, from what was known before it."""
        return outcome_metrics(known, visits, self.prior)

    def learn(self, prompt_ids: Sequence[str], visits: VisitCounts) -> None:
        """Remember a step's rewards and rollouts."""
        self._history.add(prompt_ids, visits)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self._history.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, ("history",))
        self._history.load_state_dict(state["history"])

    def metrics(self) -> dict[str, float]:
        """How the last step's rewards compare with what was believed before (`metrics.py`); empty
        before the first."""
        return dict(self._metrics)

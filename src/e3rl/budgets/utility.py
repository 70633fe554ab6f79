"""The skeleton of rules that buy the rollouts worth most by what is believed of pass rates."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Allocation, SingleRound
from e3rl.budgets.history import Counted, RewardHistory, reward_sums
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.posterior import BetaPosterior, check_prior
from e3rl.budgets.report import allocation_metrics, outcome_metrics
from e3rl.state import require_keys
from e3rl.statistics.greedy import Gains, greedy_marginal_gain


class UtilityBudget(ABC):
    """max Σ Uᵢ(nᵢ)   subject to   Σ nᵢ = total,   n_low <= nᵢ <= n_high,

    with concave utilities made from the Beta posterior of prompt i's pass rate. A rule is a
    subclass that says what one rollout more is worth.

    Args:
        n_low: hard lower bound, at least 2.
        n_high: hard upper bound.
        prior: Beta prior (a₀, b₀) of a pass rate. It decides how much prompts get that were never
            solved so far, the more so the fewer rollouts they had.
        decay: weight of earlier visits at each new one; 1 keeps them, 0.5 follows a policy that
            learns quickly.
        seed: what tie-breaks derive from.
    """

    def __init__(
        self,
        n_low: int = 2,
        n_high: int = 64,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int = 0,
    ) -> None:
        if n_low < 2:
            raise ValueError(f"n_low={n_low}: use at least 2, a single rollout has no advantage")
        if n_high < n_low:
            raise ValueError(f"n_high={n_high} lies below n_low={n_low}; raise it")
        self.n_low = n_low
        self.n_high = n_high
        self.prior = check_prior(prior)
        self.seed = seed
        self._history = RewardHistory(decay)
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def gains(self, posterior: BetaPosterior) -> Gains:
        """Uᵢ(n + 1) - Uᵢ(n) for n >= n_low, which must not rise with n."""

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Allocation:
        """Plan of a step; raises ValueError where the bounds cannot hold `total`."""
        known = self._history.of(prompt_ids)
        gains = self.gains(known.posterior(self.prior))
        keys = prompt_keys(self.seed, step, prompt_ids)
        counts = greedy_marginal_gain(gains, total, self.n_low, self.n_high, keys)
        self._metrics = allocation_metrics(counts, self.n_low, self.n_high) | {
            "unsolved_share": float(counts[known.never_solved].sum() / total),
        }
        return Allocation(SingleRound(counts), self._history.ranks(known))

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Compare a step's rewards with what was believed, then learn them."""
        visits = reward_sums(prompt_ids, rewards)
        self._metrics |= self.compare(self._history.of(prompt_ids), visits)
        self._history.add(prompt_ids, visits)

    def compare(self, known: Counted, visits: Counted) -> dict[str, float]:
        """Metrics of a finished step, from what was known before it."""
        return outcome_metrics(known, visits, self.prior)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self._history.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, ("history",))
        self._history.load_state_dict(state["history"])

    def metrics(self) -> dict[str, float]:
        """The last allocation and the beliefs behind it (`report.py`), empty before the first;
        unsolved_share: its share on prompts seen before and never solved until then."""
        return dict(self._metrics)

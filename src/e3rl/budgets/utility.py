"""The skeleton of rules that buy the rollouts worth most by what is believed of pass rates."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, Traits
from e3rl.budgets.history import RewardHistory, trait_visits
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.posterior import BetaPosterior
from e3rl.budgets.posterior_budget import PosteriorBudget
from e3rl.checkpoints.strict_state import require_keys
from e3rl.statistics.apportion import Counts, Reals
from e3rl.statistics.greedy import Gains, divide_by_cost, greedy_marginal_gain

Cost = Literal["rollouts", "tokens"]  # what a budget counts


class UtilityBudget(PosteriorBudget):
    """max Σ Uᵢ(nᵢ)   subject to   Σ nᵢ = total,   n_low <= nᵢ <= n_high,

    with concave utilities made from the Beta posterior of prompt i's pass rate. A rule is a
    subclass that says what one rollout more is worth.

    With `cost: tokens` the budget is counted in expected completion tokens Lᵢ, the mean of the
    prompt's earlier completions: Σ Lᵢnᵢ <= total · L̄, what the uniform budget would cost. The
    number of rollouts then varies from step to step, and long-winded prompts get fewer of them;
    `token_cap` and `tokens_share` among an allocation's metrics are this bound and the part that is
    spent.

    Args:
        n_low: hard lower bound, at least 2.
        n_high: hard upper bound.
        prior: Beta prior (a₀, b₀) of a pass rate. It decides how much prompts get that were never
            solved so far, the more so the fewer rollouts they had.
        decay: weight of earlier visits at each new one; 1 keeps them, 0.5 follows a policy that
            learns quickly.
        seed: what tie-breaks derive from.
        cost: `rollouts` or `tokens`.
    """

    def __init__(
        self,
        n_low: int = 2,
        n_high: int = 64,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int = 0,
        cost: Cost = "rollouts",
    ) -> None:
        super().__init__(prior, decay, seed)
        if n_low < 2:
            raise ValueError(f"n_low={n_low}: use at least 2, a single rollout has no advantage")
        if n_high < n_low:
            raise ValueError(f"n_high={n_high} lies below n_low={n_low}; raise it")
        if cost not in ("rollouts", "tokens"):
            raise ValueError(f"cost={cost!r}: use 'rollouts' or 'tokens'")
        self.n_low = n_low
        self.n_high = n_high
        self._lengths = RewardHistory(decay) if cost == "tokens" else None

    @abstractmethod
    def gains(self, posterior: BetaPosterior) -> Gains:
        """Uᵢ(n + 1) - Uᵢ(n) for n >= n_low, which must not rise with n."""

    def gains_per_cost(self, gains: Gains, costs: Reals) -> Gains:
        """`gains` in the order of what they are per token, of prompts with costs (B,)."""
        return divide_by_cost(gains, costs)

    def own_gains(self, prompt_ids: Sequence[str], posterior: BetaPosterior) -> Gains | None:
        """`gains` of a rule that knows more of prompts than their pass rates, else None."""
        return None

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step; raises ValueError where the bounds cannot hold `total`."""
        known = self._history.of(prompt_ids)
        posterior = known.posterior(self.prior)
        keys = prompt_keys(self.seed, step, prompt_ids)
        costs = self.expected_tokens(prompt_ids)
        own = self.own_gains(prompt_ids, posterior)
        counts = self.split(posterior, total, (self.n_low, self.n_high), keys, costs, own)
        paid = {}
        if costs is not None:
            cap = float(total * costs.mean())
            paid = {"token_cap": cap, "tokens_share": float(counts @ costs / cap)}
        return self.allocate_once(known, counts, self.n_low, self.n_high, **paid)

    def split(
        self,
        posterior: BetaPosterior,
        total: int,
        bounds: tuple[int, int],
        keys: NDArray[np.uint64],
        costs: Reals | None = None,
        own: Gains | None = None,
    ) -> Counts:
        """The best counts (B,); prompts that are believed alike are looked at as one."""
        if costs is not None or own is not None:
            gains = own or self.gains(posterior)
            return greedy_marginal_gain(
                gains, total, *bounds, keys, costs, per_cost=self.gains_per_cost
            )
        distinct, kinds = posterior.distinct()
        return greedy_marginal_gain(self.gains(distinct), total, *bounds, keys, kinds=kinds)

    def expected_tokens(self, prompt_ids: Sequence[str]) -> Reals | None:
        """(B,) expected tokens of a completion, of the mean prompt where unseen; None if free."""
        if self._lengths is None:
            return None
        if len(self._history) > 0 and len(self._lengths) == 0:
            raise ValueError(
                "cost=tokens: no completion length was ever told, so all prompts would cost the "
                "same; use cost=rollouts, or a pipeline that tells them"
            )
        return self._lengths.expected(prompt_ids)

    @property
    def needed_traits(self) -> tuple[str, ...]:
        return () if self._lengths is None else ("length",)

    def describe(self, prompt_ids: Sequence[str], traits: Traits) -> None:
        """Learn how long completions are, where they are what is paid for."""
        if self._lengths is not None:
            self._lengths.add(prompt_ids, trait_visits(traits["length"]))

    def state_dict(self) -> dict[str, Any]:
        lengths = {} if self._lengths is None else {"lengths": self._lengths.state_dict()}
        return super().state_dict() | lengths

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, self.state_dict())
        self._history.load_state_dict(state["history"])
        if self._lengths is not None:
            self._lengths.load_state_dict(state["lengths"])

"""The skeleton of rules that buy the rollouts worth most by what is believed of pass rates."""

from abc import abstractmethod
from collections.abc import Sequence

from e3rl.budgets.base import Allocation
from e3rl.budgets.believing import BelievingBudget
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.posterior import BetaPosterior
from e3rl.statistics.greedy import Gains, greedy_marginal_gain


class UtilityBudget(BelievingBudget):
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
        super().__init__(prior, decay, seed)
        if n_low < 2:
            raise ValueError(f"n_low={n_low}: use at least 2, a single rollout has no advantage")
        if n_high < n_low:
            raise ValueError(f"n_high={n_high} lies below n_low={n_low}; raise it")
        self.n_low = n_low
        self.n_high = n_high

    @abstractmethod
    def gains(self, posterior: BetaPosterior) -> Gains:
        """Uᵢ(n + 1) - Uᵢ(n) for n >= n_low, which must not rise with n."""

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Allocation:
        """Plan of a step; raises ValueError where the bounds cannot hold `total`."""
        known = self._history.of(prompt_ids)
        gains = self.gains(known.posterior(self.prior))
        keys = prompt_keys(self.seed, step, prompt_ids)
        counts = greedy_marginal_gain(gains, total, self.n_low, self.n_high, keys)
        return self.allocation(known, counts, self.n_low, self.n_high)

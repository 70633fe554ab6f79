"""Rollouts where rewards vary, and the less of them the more a prompt has had in all passes."""

import numpy as np

from e3rl.budgets.posterior import BetaPosterior
from e3rl.budgets.utility import Cost, UtilityBudget
from e3rl.statistics.apportion import Counts, Reals
from e3rl.statistics.greedy import Gains


class Cero(UtilityBudget):
    """Uᵢ(N) = vᵢ · s · (1 - exp(-N/s)),   vᵢ = E[pᵢ(1 - pᵢ)],

    a utility of all the rollouts N that prompt i has had and gets, in every pass (after CERO,
    arXiv 2606.05606): vᵢ is the variance of a reward that the posterior expects, and a prompt
    that had many rollouts is worth less. One rollout more is worth, up to a factor of all prompts,

        vᵢ · exp(-(Nᵢ + n)/s),   Nᵢ = the rollouts of earlier visits.

    Worths are compared by s times their logarithms, which stay apart where worths are too small
    for numbers.

    What differs from CERO: it moves the price of a rollout by a gradient step after each step, so
    that a step's total floats under a cap of the whole run; here each step's total is given, and
    the greedy split meets it exactly, at the price that this takes. The exponential is ours; the
    published text asks for a concave utility that saturates.

    Args:
        saturation: s > 0, in rollouts. Two prompts whose variances differ by a factor of e end up
            s rollouts apart; small values make all counts alike.
        n_low, n_high, prior, decay, seed, cost: as in `UtilityBudget`. With a decay, Nᵢ forgets
            as the posterior does.
    """

    def __init__(
        self,
        saturation: float = 16.0,
        n_low: int = 2,
        n_high: int = 64,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int = 0,
        cost: Cost = "rollouts",
    ) -> None:
        super().__init__(n_low, n_high, prior, decay, seed, cost)
        if not 0 < saturation < float("inf"):
            raise ValueError(
                f"saturation={saturation}: use a number of rollouts above 0, such as what a prompt "
                "gets in two passes"
            )
        self.saturation = saturation

    def gains(self, posterior: BetaPosterior) -> Gains:
        """s · ln vᵢ - (Nᵢ + n), in the order of what a rollout is worth."""
        start = self.saturation * np.log(posterior.reward_variance)
        had = posterior.a + posterior.b
        had = had - had.min(initial=np.inf)  # the same for all prompts; differences are exact

        def gain(rows: Counts, n: Counts) -> Reals:
            worth: Reals = start[rows] - (had[rows] + n)
            return worth

        return gain

    def gains_per_cost(self, gains: Gains, costs: Reals) -> Gains:
        """A price per token is a difference of logarithms."""
        paid = self.saturation * np.log(costs)
        return lambda rows, n: gains(rows, n) - paid[rows]

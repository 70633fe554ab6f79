"""Rollouts where a mixed group is likely, and worth most where the prompt is rather hard."""

from e3rl.budgets.posterior import BetaPosterior
from e3rl.budgets.utility import UtilityBudget
from e3rl.statistics.apportion import Counts, Reals
from e3rl.statistics.greedy import Gains


class Knapsack(UtilityBudget):
    """Uᵢ(n) = (1 - pᵢⁿ - (1 - pᵢ)ⁿ) · pᵢ(1 - pᵢ)²

    The first factor is the probability that n rollouts are neither all right nor all wrong, so
    that there is a gradient; the second, largest at p = 1/3, is the rise of the pass rate that a
    gradient step promises (arXiv 2509.25849). One rollout more is worth

        (pⁿ(1 - p) + (1 - p)ⁿp) · p(1 - p)²,

    which falls with n: the greedy split is the best one (tests compare it with all others).

    pᵢ is the posterior mean and not the mean reward of the last visit, so a prompt that was never
    or always solved keeps a small value, and the rule needs no special case for it.
    """

    def gains(self, posterior: BetaPosterior) -> Gains:
        right = posterior.mean
        wrong = 1 - right
        value = right * wrong**2

        def gain(rows: Counts, n: Counts) -> Reals:
            p, q = right[rows], wrong[rows]
            return (p**n * q + q**n * p) * value[rows]

        return gain

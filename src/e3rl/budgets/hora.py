"""Rollouts where a first right answer is likely to come of them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from e3rl.budgets.base import Decision
from e3rl.budgets.history import VisitCounts
from e3rl.budgets.keys import prompt_keys
from e3rl.budgets.posterior import BetaPosterior
from e3rl.budgets.rounds import Rounds
from e3rl.budgets.utility import Cost, UtilityBudget
from e3rl.statistics.apportion import Counts, Reals
from e3rl.statistics.greedy import Gains


class Hora(UtilityBudget):
    """Uᵢ(m) = P(at least one of m rollouts is right) = 1 - Π_{j<m} (bᵢ + j)/(aᵢ + bᵢ + j),

    the hit utility of a prompt whose pass rate is Beta(aᵢ, bᵢ) (arXiv 2605.07114). One rollout
    more is worth a/(a + b + m) · Π_{j<m} (b + j)/(a + b + j), which falls with m.

    Mode `history` splits the whole step by what earlier visits say. Mode `pilot` first samples
    n_low of every prompt; those that were hit get no more, the others share the rest by the hit
    utility of the posterior that includes their n_low misses. Where all are hit, or full, the rest
    stays unspent.

    Args:
        mode: `history` or `pilot`.
        n_low, n_high, prior, decay, seed, cost: as in `UtilityBudget`.
    """

    def __init__(
        self,
        mode: Literal["history", "pilot"] = "history",
        n_low: int = 2,
        n_high: int = 64,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int = 0,
        cost: Cost = "rollouts",
    ) -> None:
        super().__init__(n_low, n_high, prior, decay, seed, cost)
        if mode not in ("history", "pilot"):
            raise ValueError(f"mode={mode!r}: use 'history' or 'pilot'")
        if mode == "pilot" and cost == "tokens":
            raise ValueError(
                "cost=tokens: a pilot counts rollouts; use mode=history, or cost=rollouts"
            )
        self.mode = mode

    def gains(self, posterior: BetaPosterior) -> Gains:
        a, b = posterior.a, posterior.b
        table = np.empty((self.n_high, a.size))  # a row per count, since it follows from the last
        misses = np.ones(a.size)
        for n, row in enumerate(table):
            row[:] = misses * a / (a + b + n)
            misses *= (b + n) / (a + b + n)

        def gain(rows: Counts, n: Counts) -> Reals:
            found: Reals = table[n, rows]
            return found

        return gain

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step, in mode `pilot` with the metrics of `Rounds`.

        Raises ValueError where the bounds cannot hold `total`.
        """
        if self.mode == "history":
            return super().decide(prompt_ids, total, step, epoch)
        n = len(prompt_ids)
        if not self.n_low * n <= total <= self.n_high * n:
            raise ValueError(
                f"{total} rollouts for {n} prompts lie outside n_low={self.n_low} and "
                f"n_high={self.n_high} each: change rollouts_per_prompt or the bounds"
            )
        known = self._history.of(prompt_ids)
        posterior = known.posterior(self.prior)
        keys = prompt_keys(self.seed, step, prompt_ids)

        def more(rollouts: Counts, right: Reals, left: int) -> Counts:
            if not rollouts.any():
                return np.full(n, self.n_low, dtype=np.int64)
            if allocation.rounds > 1:
                return np.zeros_like(rollouts)
            unhit = np.flatnonzero(right == 0)
            missed = BetaPosterior(posterior.a[unhit], posterior.b[unhit] + self.n_low)
            room = self.n_high - self.n_low
            counts = np.zeros_like(rollouts)
            left = min(left, room * unhit.size)
            counts[unhit] = self.split(missed, left, (0, room), keys[unhit])
            return counts

        allocation = Rounds(total, more, (self.n_low, self.n_high))
        ranks = self._history.ranks(known)
        return Decision(allocation, ranks, always_right=known.always_solved)

    def allocate_once(
        self, known: VisitCounts, counts: Counts, n_min: int, n_max: int, **metrics: float
    ) -> Decision:
        """As in `UtilityBudget`, and expected_hits: the share of prompts that the hit utilities of
        the counts promise to hit. Counts that depend on the rewards, as a pilot's, promise none."""
        metrics["expected_hits"] = float(hit_utility(known.posterior(self.prior), counts).mean())
        return super().allocate_once(known, counts, n_min, n_max, **metrics)

    def compare(self, known: VisitCounts, visits: VisitCounts) -> dict[str, float]:
        """As in `UtilityBudget`, and hits: share of prompts with a right rollout."""
        return super().compare(known, visits) | {"hits": float((visits.rewards > 0).mean())}


def hit_utility(posterior: BetaPosterior, counts: Counts) -> Reals:
    """(B,) probability that at least one of `counts` (B,) rollouts is right."""
    a, b = posterior.a, posterior.b
    misses = np.ones(a.size)
    for n in range(int(counts.max(initial=0))):
        misses *= np.where(n < counts, (b + n) / (a + b + n), 1.0)
    return 1 - misses

"""Rollouts for the prompts whose rewards have varied most within their groups."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from e3rl.budgets.history import DIGITS, RewardHistory, VisitCounts, trait_visits
from e3rl.budgets.selection import SelectionBudget
from e3rl.checkpoints.strict_state import require_keys
from e3rl.statistics.apportion import Counts, Reals


class Vcrl(SelectionBudget):
    """Of B candidates, the w·B of the largest reward variance; unknown ones come after κ.

    A visit with c right of n rollouts has the unbiased variance c(n - c)/(n(n - 1)), as a share of
    the largest that n rollouts can show

        v = c(n - c) / (⌊n/2⌋⌈n/2⌉),   and over visits   Vᵢ ← (λ·Vᵢ·Wᵢ + v) / (λ·Wᵢ + 1),

    Wᵢ the discounted number of visits. Known prompts with Vᵢ >= κ come first, by Vᵢ; then those
    never seen, drawn anew each step; then known prompts below κ, by Vᵢ. A single rollout has no
    variance and is no visit.

    What differs from VCRL (arXiv 2509.19803), where every prompt of a batch gets rollouts, those
    with v < κ are thrown away, and a memory bank of prompts of high priority fills the batch:
    a selector decides before any rollout, so v is that of earlier visits, and no rollout is thrown
    away; κ therefore says when a known prompt goes before an untried one, and since no prompt is
    known at the start of a run, it needs no schedule. The memory are the Vᵢ, with the momentum λ
    of the published priority, but they choose among the step's candidates alone: the loader brings
    each prompt once a pass. The step's total is spent to the last, on prompts below κ if need be,
    which is also how those get another visit.

    Args:
        selected_share: w in (0, 1), as in `SelectionBudget`.
        threshold: κ in [0, 1].
        prior, seed: as in `SelectionBudget`; the prior is for its metrics alone.
        decay: λ, of earlier visits in Vᵢ and in the pass rates of the metrics.
    """

    def __init__(
        self,
        selected_share: float = 0.5,
        threshold: float = 0.8,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__(selected_share, prior, decay, seed)
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold={threshold}: shares of the largest variance lie in [0, 1]")
        self.threshold = threshold
        self._variance = RewardHistory(decay)

    def worth(
        self, prompt_ids: Sequence[str], known: VisitCounts, order: Counts, step: int
    ) -> Reals:
        """(B,) Vᵢ, where known prompts at or above κ are raised by 1 and others that are known
        lowered by 1, so that those never seen, at 0.5, lie between."""
        visits = self._variance.of(prompt_ids)
        seen = visits.rollouts > 0
        values = np.round(visits.rewards[seen] / visits.rollouts[seen], DIGITS)
        worth = np.full(seen.size, 0.5)
        worth[seen] = values + np.where(values >= self.threshold, 1, -1)
        return worth

    def learn(self, prompt_ids: Sequence[str], visits: VisitCounts) -> None:
        """Remember pass rates and variances."""
        super().learn(prompt_ids, visits)
        self._variance.add(prompt_ids, trait_visits(relative_variance(visits)))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"variance": self._variance.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("Vcrl", state, ("history", "variance"))
        super().load_state_dict({"history": state["history"]})
        self._variance.load_state_dict(state["variance"])


def relative_variance(visits: VisitCounts) -> Reals:
    """(B,) c(n - c) / (⌊n/2⌋⌈n/2⌉) in [0, 1]; NaN for fewer than two rollouts.

    The unbiased variance c(n - c)/(n(n - 1)) over the largest of n rollouts, n/(4(n - 1)) for even
    n and (n + 1)/(4n) for odd n (arXiv 2509.19803).
    """
    right, n = visits.rewards, visits.rollouts
    several = n > 1
    found = np.full(n.size, np.nan)
    half = n[several] // 2
    found[several] = (right * (n - right))[several] / (half * (n[several] - half))
    return found

"""What is known of the norms of prompts' gradients, for rules that weigh by them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from e3rl.budgets.base import NORMS, Traits
from e3rl.budgets.history import RewardHistory, trait_visits
from e3rl.checkpoints.strict_state import require_keys
from e3rl.statistics.apportion import Reals


@dataclass(frozen=True)
class Norms:
    """Moments of the norm g of a rollout's gradient by prompt, over right and wrong rollouts."""

    right: Reals  # (B,) E[g₊]
    right_squared: Reals  # (B,) E[g₊²]
    wrong: Reals  # (B,) E[g₋]
    wrong_squared: Reals  # (B,) E[g₋²]

    @classmethod
    def unit(cls, n: int) -> "Norms":
        """All g are 1."""
        return cls(*(np.ones(n) for _ in NORMS))


class GradNorms:
    """Means of the measured moments over the visits of a prompt, earlier ones discounted.

    A prompt without a right (wrong) rollout so far is taken for the mean prompt in that respect,
    and where no prompt has one, right and wrong rollouts for alike; how rare such rollouts are is
    for the pass rate to say.

    Args:
        decay: weight of earlier visits at each new one.
    """

    def __init__(self, decay: float) -> None:
        self._moments = {name: RewardHistory(decay) for name in NORMS}

    def __len__(self) -> int:
        """Prompts of which anything is known."""
        return max(len(history) for history in self._moments.values())

    def describe(self, prompt_ids: Sequence[str], traits: Traits) -> None:
        """Learn a step's moments; NaN is no news."""
        for name, history in self._moments.items():
            history.add(prompt_ids, trait_visits(traits[name]))

    def of(self, prompt_ids: Sequence[str]) -> Norms:
        """What to expect of some prompts, 1 where nothing is known of any."""
        right, right_squared, wrong, wrong_squared = self._moments.values()
        pairs = ((right, wrong), (right_squared, wrong_squared))
        both = (*pairs, *(pair[::-1] for pair in pairs))
        known = (own if len(own) or not len(other) else other for own, other in both)
        return Norms(*(history.expected(prompt_ids) for history in known))

    def state_dict(self) -> dict[str, Any]:
        return {name: history.state_dict() for name, history in self._moments.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("GradNorms", state, NORMS)
        for name, history in self._moments.items():
            history.load_state_dict(state[name])

"""What is known about every prompt seen so far: its rewards and its rollouts."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from e3rl.state import require_keys


class RewardHistory:
    """Cumulative reward and rollout counts by prompt id.

        Rᵢ ← λ·Rᵢ + Σⱼ rᵢⱼ,   Cᵢ ← λ·Cᵢ + nᵢ,   mean = Rᵢ/Cᵢ

    at every visit of prompt i. λ = 1 is the published lifetime mean (arXiv 2505.18573 section
    3.1), which grows stale and, where the budgets differ, weighs later visits by their rollouts;
    λ < 1 forgets old visits.

    Args:
        decay: λ in (0, 1].
    """

    def __init__(self, decay: float = 1.0) -> None:
        if not 0 < decay <= 1:
            raise ValueError(
                f"decay={decay} must lie in (0, 1]; 1 keeps every visit, 0.5 halves their weight"
            )
        self.decay = decay
        self._rewards: dict[str, float] = {}
        self._rollouts: dict[str, float] = {}

    def __len__(self) -> int:
        """Prompts seen."""
        return len(self._rollouts)

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Add one visit per prompt; prompts without a rollout were not visited.

        Raises ValueError for rewards outside [0, 1] (NaN included), and where the number of ids
        differs from the number of reward arrays.
        """
        for prompt_id, values in zip(prompt_ids, rewards, strict=True):
            if len(values) == 0:
                continue
            if not all(0 <= value <= 1 for value in values):
                raise ValueError(
                    f"prompt {prompt_id}: rewards {list(values)} outside [0, 1]; budgets learn "
                    "from the verifier's raw 0/1, not from shaped rewards"
                )
            old_reward = self.decay * self._rewards.get(prompt_id, 0.0)
            old_rollouts = self.decay * self._rollouts.get(prompt_id, 0.0)
            self._rewards[prompt_id] = old_reward + math.fsum(values)
            self._rollouts[prompt_id] = old_rollouts + len(values)

    def means(self) -> dict[str, float]:
        """Mean reward in [0, 1] of every prompt seen."""
        return {key: self._rewards[key] / count for key, count in self._rollouts.items()}

    def never_solved(self, prompt_ids: Sequence[str]) -> NDArray[np.bool_]:
        """(B,) True for prompts that were seen and never earned a reward."""
        return np.array([self._rewards.get(prompt_id) == 0 for prompt_id in prompt_ids])

    def state_dict(self) -> dict[str, Any]:
        return {"rewards": dict(self._rewards), "rollouts": dict(self._rollouts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("RewardHistory", state, ("rewards", "rollouts"))
        self._rewards = dict(state["rewards"])
        self._rollouts = dict(state["rollouts"])

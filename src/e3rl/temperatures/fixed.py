"""The control rule: one temperature for the whole run."""

import math
from collections.abc import Mapping
from typing import Any

from e3rl.checkpoints.strict_state import require_keys
from e3rl.temperatures.base import Constant, Difficulty, EntropyReading


class Fixed:
    """τ for every rollout of every step. Stateless.

    Args:
        temperature: τ > 0.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        if not 0 < temperature < math.inf:
            raise ValueError(
                f"temperature={temperature} must be a number above 0; without sampling noise all "
                "rollouts of a prompt are alike and no group has an advantage"
            )
        self.temperature = temperature

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        """The length of the run changes nothing here."""

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Constant:
        return Constant(self.temperature)

    def observe(self, reading: EntropyReading) -> None:
        """The entropy changes nothing here."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("Fixed", state, ())

    def metrics(self) -> dict[str, float]:
        return {"value": self.temperature}

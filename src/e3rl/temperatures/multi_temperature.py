"""Several temperatures in one step, around the one that another rule decides."""

from collections.abc import Sequence
from dataclasses import dataclass

from e3rl.temperatures.base import (
    Difficulty,
    TemperaturePlan,
    TemperatureRule,
)
from e3rl.temperatures.spreads import Spread
from e3rl.temperatures.wrapping import WrappingRule


@dataclass(frozen=True)
class Spreading:
    """Rollout j of prompt i at cᵢⱼ·τ; calls fit `batch.temperature_of`."""

    plan: TemperaturePlan  # of τ
    spread: Spread
    difficulty: Difficulty | None

    @property
    def temperature(self) -> float:
        return self.plan.temperature

    def __call__(self, prompts: Sequence[int], samples: Sequence[int]) -> list[float]:
        factors = self.spread.factors(self.difficulty, prompts, samples)
        return [self.temperature * factor for factor in factors]

    def token_factors(self, count: int) -> Sequence[float]:
        return self.plan.token_factors(count)


class MultiTemperature(WrappingRule):
    """τᵢⱼ = cᵢⱼ·τ_t, with τ_t by another rule and the factors cᵢⱼ by a spread.

    A rule that controls the entropy goes on as it would alone, with τ_t as what it moves: H_t and
    a target that is measured are both of the mixture, all of which scales with τ_t. Therefore a
    reading is passed on in terms of τ_t, not of the mean temperature that the rollouts had.

    Args:
        rule: decides τ_t (`temperatures/`).
        spread: factors around it (`temperatures/spreads.py`).
    """

    def __init__(self, rule: TemperatureRule, spread: Spread) -> None:
        super().__init__(rule)
        self.spread = spread

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Spreading:
        return Spreading(self.rule.decide(step), self.spread, difficulty)

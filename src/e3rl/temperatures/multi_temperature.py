"""Several temperatures in one step, around the one that another rule decides."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from e3rl.checkpoints.strict_state import require_keys
from e3rl.temperatures.base import (
    Difficulty,
    EntropyReading,
    TemperatureDecision,
    TemperatureRule,
    at_step_temperature,
)
from e3rl.temperatures.spreads import Spread


@dataclass(frozen=True)
class Spreading:
    """Rollout j of prompt i at cᵢⱼ·τ within bounds; calls fit `batch.temperature_of`."""

    decision: TemperatureDecision  # of τ
    spread: Spread
    difficulty: Difficulty | None
    bounds: tuple[float, float]

    @property
    def temperature(self) -> float:
        return self.decision.temperature

    def __call__(self, prompts: Sequence[int], samples: Sequence[int]) -> list[float]:
        factors = self.spread.factors(self.difficulty, prompts, samples)
        low, high = self.bounds
        return [min(max(self.temperature * factor, low), high) for factor in factors]


class MultiTemperature:
    """τᵢⱼ = cᵢⱼ·τ_t, with τ_t by another rule and the factors cᵢⱼ by a spread.

    A rule that controls the entropy goes on as it would alone, with τ_t as what it moves: H_t is
    that of all tokens, whose temperatures scale with τ_t. Therefore a reading is passed on in terms
    of τ_t, not of the mean temperature that the rollouts had. Bounds of the rule hold for every
    rollout; at a bound the mixture no longer scales.

    A target H* that the rule measures is that of the steps it is measured in. Under a `Ladder`
    every step has the same factors, and H* is the mixture's. `ByDifficulty` has none before prompts
    were seen, which is the first pass unless the data bring ranks: H* is then that of τ_t alone,
    and from the second pass on τ_t moves until the mixture has that entropy, downwards where the
    hot prompts have more rollouts or longer ones. Such a run is to be compared with one of `rule`
    alone: their tokens have the same entropy, not the same mean temperature. For the same mean
    temperature both take a rule that does not follow the entropy, as `Fixed`.

    Args:
        rule: decides τ_t (`temperatures/`).
        spread: factors around it (`temperatures/spreads.py`).
    """

    def __init__(self, rule: TemperatureRule, spread: Spread) -> None:
        self.rule = rule
        self.spread = spread

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        self.rule.bind(total_steps, lookahead)

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Spreading:
        bounds = getattr(self.rule, "bounds", (0.0, math.inf))  # of rules that move
        return Spreading(self.rule.decide(step), self.spread, difficulty, bounds)

    def observe(self, reading: EntropyReading) -> None:
        """Let the rule learn, in terms of τ; raises what it raises."""
        base = self.rule.decide(reading.step).temperature
        self.rule.observe(at_step_temperature(reading, base))

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self.rule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, ("rule",))
        self.rule.load_state_dict(state["rule"])

    def metrics(self) -> dict[str, float]:
        """Those of the rule; its `value` is τ, and the tokens' mean is `rollout/temperature`."""
        return self.rule.metrics()

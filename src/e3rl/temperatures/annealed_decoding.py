"""A temperature that falls within each completion, around the one that another rule decides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from e3rl.temperatures.base import (
    Difficulty,
    TemperaturePlan,
    TemperatureRule,
)
from e3rl.temperatures.wrapping import WrappingRule


@dataclass(frozen=True)
class Annealing:
    """The rollouts' temperatures of another plan, and a factor by token."""

    plan: TemperaturePlan
    highest: float
    lowest: float
    scale: float  # tokens
    untouched: int  # tokens

    @property
    def temperature(self) -> float:
        return self.plan.temperature

    def __call__(self, prompts: Sequence[int], samples: Sequence[int]) -> Sequence[float]:
        return self.plan(prompts, samples)

    def token_factors(self, count: int) -> tuple[float, ...]:
        return tuple(self._factor(t) for t in range(count))

    def _factor(self, t: int) -> float:
        if t < self.untouched:
            return 1.0
        # Beyond this the floor holds, and exp would overflow.
        rise = math.exp(min(t / self.scale, math.log(1 + self.highest)))
        return max(1 + self.highest - rise, self.lowest)


class AnnealedDecoding(WrappingRule):
    """Token t of a rollout at τ·max(1 + c₊ - exp(t/d_s), c₋), t from 0 (EAD, arXiv 2510.05251).

    Early tokens decide what a completion becomes and are sampled hot, late ones carry it out and
    are sampled cold. τ is the rollout's, decided by another rule, which may be any: it goes on as
    it would alone, told of the entropy as one at τ. d_s = min(d₀ + growth·s, d_max) at rollout
    step s, so that the fall moves back while completions grow longer.

    The published runs sample with c₊ = 1.2, c₋ = 0.1, d₀ = 25, growth = 5, d_max = 40,000, in
    code with t/(20·d) and the first 10 tokens at τ, and train on log-probs at temperature 1, off
    the policy that sampled. Here every token is trained on at the temperature it was sampled at.
    For short completions the scale must be such that the fall lies within them: the floor is
    reached at t = d·ln(1 + c₊ - c₋), 18 tokens for d = 25. Validation is not annealed; what it
    calls `live` is at τ.

    Args:
        rule: decides τ (`temperatures/`).
        highest: c₊, the factor of the first annealed token if none is untouched.
        lowest: c₋ in (0, c₊).
        scale: d₀ > 0 in tokens.
        growth: >= 0, tokens per rollout step.
        longest: d_max in tokens, at least d₀.
        untouched: tokens at the start that are sampled at τ.
    """

    def __init__(
        self,
        rule: TemperatureRule,
        highest: float = 1.2,
        lowest: float = 0.1,
        scale: float = 25.0,
        growth: float = 0.0,
        longest: float = 40_000.0,
        untouched: int = 0,
    ) -> None:
        if not 0 < lowest < highest:
            raise ValueError(
                f"lowest={lowest} and highest={highest}: give factors with 0 < lowest < highest, "
                "such as the published 0.1 and 1.2"
            )
        if not 0 < scale <= longest:
            raise ValueError(f"scale={scale} must be tokens above 0, and at most longest={longest}")
        if growth < 0 or untouched < 0:
            raise ValueError(f"growth={growth} and untouched={untouched}: use 0 or more tokens")
        super().__init__(rule)
        self.highest = highest
        self.lowest = lowest
        self.scale = scale
        self.growth = growth
        self.longest = longest
        self.untouched = untouched

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Annealing:
        plan = self.rule.decide(step, difficulty)
        scale = min(self.scale + self.growth * step, self.longest)
        return Annealing(plan, self.highest, self.lowest, scale, self.untouched)

"""How the temperatures of single rollouts depart from the one of their step."""

import math
from collections.abc import Sequence
from typing import Protocol

from e3rl.temperatures.base import Difficulty


class Spread(Protocol):
    """A rule for the factor cᵢⱼ of rollout j of prompt i, which is sampled at cᵢⱼ·τ."""

    def factors(
        self, difficulty: Difficulty | None, prompts: Sequence[int], samples: Sequence[int]
    ) -> list[float]:
        """Factors of rollouts: (prompt rows (m,), sample indices (m,)) -> (m,), each above 0.

        `difficulty` is None where it is not known, as in validation.
        """


class Ladder:
    """cᵢⱼ = rung (j mod m): each group samples at several temperatures (arXiv 2510.08892).

    Every rollout is scored at its own temperature, and the mean of a group remains a baseline that
    does not depend on the rollout itself in its leave-one-out form.

    Args:
        rungs: m factors above 0. Groups may have any size, so the middle one comes first.
    """

    def __init__(self, rungs: Sequence[float] = (1.0, 0.7, 1.3)) -> None:
        if len(set(rungs)) < 2 or not all(0 < rung < math.inf for rung in rungs):
            raise ValueError(
                f"rungs={list(rungs)}: give two or more different factors above 0, or leave the "
                "spread out"
            )
        self.rungs = list(rungs)

    def factors(
        self, difficulty: Difficulty | None, prompts: Sequence[int], samples: Sequence[int]
    ) -> list[float]:
        return [self.rungs[j % len(self.rungs)] for j in samples]


class ByDifficulty:
    """cᵢⱼ = 1 + 2κ·(kᵢ - k̄), kᵢ the difficulty rank of prompt i, k̄ the mean of those seen.

    This is τᵢ = τ_t·(1 + κ(2kᵢ - 1)) with the middle of the ranks put where that of the step's
    prompts is, so that the mean of τᵢ over prompts is τ_t in every step. A prompt that was never
    seen has τ_t. Named as future work by arXiv 2505.18573.

    Args:
        kappa: κ in (-0.5, 0.5), which keeps every factor above 0; 0.1 to 0.2 is moderate, below 0
            heats the easy prompts instead of the hard ones.
    """

    def __init__(self, kappa: float = 0.2) -> None:
        if not 0 < abs(kappa) < 0.5:
            raise ValueError(
                f"kappa={kappa} must lie in (-0.5, 0.5) and not be 0; try 0.2, or leave the "
                "spread out"
            )
        self.kappa = kappa

    def factors(
        self, difficulty: Difficulty | None, prompts: Sequence[int], samples: Sequence[int]
    ) -> list[float]:
        if difficulty is None:
            return [1.0] * len(prompts)
        above = [0.0 if math.isnan(k) else k - difficulty.mean for k in difficulty.ranks]
        return [1 + 2 * self.kappa * above[row] for row in prompts]

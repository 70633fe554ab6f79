"""What past rollouts say about each prompt's pass rate, with its uncertainty."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class BetaPosterior:
    """Independent Beta(aᵢ, bᵢ) beliefs about the pass rates pᵢ of B prompts.

    With a prior Beta(a₀, b₀) and the discounted counts R of right and C of all rollouts,
    a = a₀ + R and b = b₀ + C - R. This equals the recursion a ← λ·a + (1-λ)·a₀ + c of
    arXiv 2507.04632, with the rollouts that were really spent in place of a fixed group size.

    Temperatures are not told apart: p is the pass rate at the mixture that was sampled.
    """

    a: Reals  # (B,) > 0
    b: Reals  # (B,) > 0

    @property
    def mean(self) -> Reals:
        """E[p] = a / (a + b), in (0, 1)."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> Reals:
        """Var[p] = ab / ((a + b)²(a + b + 1))."""
        total = self.a + self.b
        return self.a * self.b / (total**2 * (total + 1))

    @property
    def reward_variance(self) -> Reals:
        """E[p(1 - p)] = ab / ((a + b)(a + b + 1)), what a single 0/1 reward varies by."""
        total = self.a + self.b
        return self.a * self.b / (total * (total + 1))

    def distinct(self) -> tuple["BetaPosterior", NDArray[np.int64]]:
        """The K different beliefs, and the number of its own (B,) for every prompt."""
        _, a = np.unique(self.a, return_inverse=True)
        _, b = np.unique(self.b, return_inverse=True)
        pair = a * (b.max(initial=0) + 1) + b
        _, first, kinds = np.unique(pair, return_index=True, return_inverse=True)
        return BetaPosterior(self.a[first], self.b[first]), kinds


def check_prior(prior: tuple[float, float]) -> tuple[float, float]:
    """The prior (a₀, b₀) as floats; ValueError where it is no proper Beta distribution."""
    if len(prior) != 2 or not all(0 < x < float("inf") for x in prior):
        raise ValueError(f"prior={prior}: give two numbers > 0; [1, 1] expects every rate alike")
    return float(prior[0]), float(prior[1])

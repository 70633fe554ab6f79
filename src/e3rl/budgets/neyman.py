"""Rollouts where they reduce the variance of the gradient most: one solver, four weights."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from e3rl.budgets.base import Traits
from e3rl.budgets.grad_norms import GradNorms, Norms
from e3rl.budgets.posterior import BetaPosterior
from e3rl.budgets.utility import UtilityBudget
from e3rl.statistics.apportion import Counts, Reals
from e3rl.statistics.greedy import Gains

Weight = Literal["sqrt_pq", "vip_drgrpo", "gvm", "cures"]
GVM_ALPHA = 1e-3  # the published value; the weight is largest at p = √α
SMALLEST_LOW = {"sqrt_pq": 2, "vip_drgrpo": 3, "gvm": 2, "cures": 2}


class Neyman(UtilityBudget):
    """min Σ vᵢ·h(nᵢ), the variance of the gradient, which is Neyman's rule of sampling strata.

    | weight       | v                                    | h(n)       | solution between bounds |
    |--------------|--------------------------------------|------------|-------------------------|
    | `sqrt_pq`    | E[p(1-p)]                            | 1/(n-1)    | 1 + λ·√v                |
    | `vip_drgrpo` | E[p(1-p)]                            | (n-1)/n²   | root of v(n-2)/n³ = λ   |
    | `gvm`        | g²/(p + α/p)                         | 1/n        | λ·√v                    |
    | `cures`      | pq²E[g₊²] + p²qE[g₋²] - p²q²(g₊-g₋)² | 1/n        | λ·√v                    |

    The first two are VIP for leave-one-out and Dr. GRPO baselines (arXiv 2602.01601), the third
    GVM-RAFT (arXiv 2505.02391), the fourth CurES; their weights are below. All are
    convex in n, so the whole numbers are found directly, not by rounding. (n-1)/n² is 0 at
    n = 1 and largest at n = 2, where a biased estimator has no variance because it vanishes:
    `vip_drgrpo` therefore needs n_low >= 3.

    `gvm` and `cures` weigh by norms g of the gradients of rollouts' log-probs, g₊ of right and g₋
    of wrong ones. Training measures them for these rules, with respect to the logits
    (`functional/grad_norms.py`), which takes one forward pass more over all rollouts. With
    `unit_norms` all g are 1, and what is left is how the papers treat pass rates; `cures` is then
    v = p(1-p) with p the posterior mean, where `sqrt_pq` has the posterior's E[p(1-p)], and 1/n for
    its 1/(n-1).

    Args:
        weight: `sqrt_pq`, `vip_drgrpo`, `gvm` or `cures`.
        unit_norms: take all gradient norms as 1 instead of measuring them.
        n_low, n_high, prior, decay, seed, cost: as in `UtilityBudget`.
    """

    def __init__(
        self,
        weight: Weight = "sqrt_pq",
        unit_norms: bool = False,
        n_low: int = 2,
        n_high: int = 64,
        prior: tuple[float, float] = (1.0, 1.0),
        decay: float = 1.0,
        seed: int = 0,
        cost: Literal["rollouts", "tokens"] = "rollouts",
    ) -> None:
        super().__init__(n_low, n_high, prior, decay, seed, cost)
        if weight not in SMALLEST_LOW:
            raise ValueError(f"weight={weight!r}: use one of {', '.join(SMALLEST_LOW)}")
        if n_low < SMALLEST_LOW[weight]:
            raise ValueError(
                f"n_low={n_low}: weight={weight} needs at least 3, its variance is 0 at 1"
            )
        self.weight = weight
        self._norms = GradNorms(decay) if weight in ("gvm", "cures") and not unit_norms else None

    @property
    def needs_grad_norms(self) -> bool:
        return self._norms is not None

    def own_gains(self, prompt_ids: Sequence[str], posterior: BetaPosterior) -> Gains | None:
        if self._norms is None:
            return None
        if len(self._history) > 0 and len(self._norms) == 0:
            raise ValueError(
                f"weight={self.weight}: no gradient norm was ever told; set unit_norms=true to "
                "take them as 1, or use a pipeline that measures them"
            )
        return self.gains(posterior, self._norms.of(prompt_ids))

    def gains(self, posterior: BetaPosterior, norms: Norms | None = None) -> Gains:
        """As in `UtilityBudget`, with unit norms where none are given."""
        variances = self._variances(posterior, norms or Norms.unit(posterior.a.size))
        saved = {"sqrt_pq": _leave_one_out, "vip_drgrpo": _dr_grpo}.get(self.weight, _independent)

        def gain(rows: Counts, n: Counts) -> Reals:
            return variances[rows] * saved(n.astype(np.float64))

        return gain

    def _variances(self, posterior: BetaPosterior, norms: Norms) -> Reals:
        p, g = posterior.mean, norms
        match self.weight:
            case "gvm":
                return gvm_weight(p, g.right) ** 2
            case "cures":
                moments = (g.right, g.right_squared, g.wrong, g.wrong_squared)
                return cures_deviation(p, *moments) ** 2
        return posterior.reward_variance

    def describe(self, prompt_ids: Sequence[str], traits: Traits) -> None:
        super().describe(prompt_ids, traits)
        if self._norms is not None:
            self._norms.describe(prompt_ids, traits)

    def state_dict(self) -> dict[str, Any]:
        norms = {} if self._norms is None else {"norms": self._norms.state_dict()}
        return super().state_dict() | norms

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._norms is not None:
            self._norms.load_state_dict(state["norms"])


def _leave_one_out(n: Reals) -> Reals:
    """h(n) - h(n + 1) for h = 1/(n - 1)."""
    return 1 / (n * (n - 1))


def _dr_grpo(n: Reals) -> Reals:
    """h(n) - h(n + 1) for h = (n - 1)/n²."""
    return (n * n - n - 1) / (n * n * (n + 1) ** 2)


def _independent(n: Reals) -> Reals:
    """h(n) - h(n + 1) for h = 1/n."""
    return 1 / (n * (n + 1))


def gvm_weight(p: Reals, norm: Reals, alpha: float = GVM_ALPHA) -> Reals:
    """g / √(p + α/p), and 0 where p or g is 0 (arXiv 2505.02391, exponent β = 2).

    Rejection sampling needs accepted samples: as p falls the weight rises like 1/√p, is largest at
    √α and vanishes like √(p/α), where nothing is going to be accepted.

    Args:
        p: (B,) pass rates in [0, 1].
        norm: (B,) g, mean norms of the gradient of log p over accepted samples.
        alpha: above 0, where the weight begins to fall again.
    """
    return np.where(p > 0, norm * np.sqrt(p / (p * p + alpha)), 0.0)


def cures_deviation(
    p: Reals, right: Reals, right_squared: Reals, wrong: Reals, wrong_squared: Reals
) -> Reals:
    """σ with σ² = p q² E[g₊²] + p² q E[g₋²] - p² q² (E[g₊] - E[g₋])²,   q = 1 - p.

    The deviation of one centred policy-gradient sample (CurES); with equal norms it is √(pq).

    Args:
        p: (B,) pass rates in [0, 1].
        right, right_squared: (B,) E[g₊] and E[g₊²] over right rollouts.
        wrong, wrong_squared: (B,) E[g₋] and E[g₋²] over wrong ones.
    """
    q = 1 - p
    variance = p * q**2 * right_squared + p**2 * q * wrong_squared - (p * q * (right - wrong)) ** 2
    deviation: Reals = np.sqrt(np.maximum(variance, 0.0))
    return deviation

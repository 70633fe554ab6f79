"""An entropy bonus whose weight follows the entropy."""

from collections.abc import Mapping
from typing import Any

from e3rl.checkpoints.strict_state import require_keys


class AdaptiveEntropyBonus:
    """Weight λ of the entropy bonus that rises while the entropy is below a target.

        λ ← clip(λ + δ, 0, λ_max) if H < H* else clip(λ - δ, 0, λ_max),   used only while H ≤ H*

    (Skywork-OR1, arXiv 2505.22312, "MAGIC"; there H* = 0.2, δ = 1e-4, λ_max = 5e-3.) H is the
    sampled entropy of the batch, so λ moves before the batch is trained on. A controller of two
    values: it swings around the target, by more the larger δ is.

    Args:
        target: H* > 0 in nats per token; None = the entropy of the first batch. It must lie near
            where the policy starts: far below, the bonus never acts.
        delta: δ > 0, the step of λ per batch.
        highest: λ_max > 0.
        start: λ before the first batch, in [0, λ_max].
    """

    def __init__(
        self,
        target: float | None = None,
        delta: float = 1e-4,
        highest: float = 5e-3,
        start: float = 0.0,
    ) -> None:
        for name, value in (("target", target), ("delta", delta), ("highest", highest)):
            if value is not None and value <= 0:
                raise ValueError(f"entropy_coef.{name}={value}: use a number above 0")
        if not 0 <= start <= highest:
            raise ValueError(f"entropy_coef.start={start} must lie in [0, highest={highest}]")
        self.delta = delta
        self.highest = highest
        self._target = target
        self._weight = start
        self._active = False

    @property
    def value(self) -> float:
        """λ for the batch that was observed last: 0 above the target."""
        return self._weight if self._active else 0.0

    def observe(self, entropy: float) -> None:
        """Move λ by the entropy of a batch, in nats per token over all ranks."""
        if self._target is None:
            self._target = entropy
        step = self.delta if entropy < self._target else -self.delta
        self._weight = min(max(self._weight + step, 0.0), self.highest)
        self._active = entropy <= self._target

    def metrics(self) -> dict[str, float]:
        return {
            "entropy_coef": self.value,
            "entropy_coef_held": self._weight,  # λ, also while it is not used
            "entropy_target": self._target or 0.0,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"target": self._target, "weight": self._weight, "active": self._active}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: unknown or missing keys raise ValueError naming them."""
        require_keys("AdaptiveEntropyBonus", state, ("target", "weight", "active"))
        self._target, self._weight = state["target"], state["weight"]
        self._active = state["active"]

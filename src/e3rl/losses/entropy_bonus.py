"""Entropy bonuses whose weight follows the entropy."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from e3rl.checkpoints.strict_state import require_keys


class MovingEntropyBonus(ABC):
    """Weight λ of the entropy bonus that moves with each batch, before it is trained on."""

    _keys: tuple[str, ...]  # names of the state, attributes with an underscore before them

    def __init__(self, delta: float, highest: float, start: float) -> None:
        _require_positive(delta=delta, highest=highest)
        if not 0 <= start <= highest:
            raise ValueError(f"entropy_coef.start={start} must lie in [0, highest={highest}]")
        self.delta = delta
        self.highest = highest
        self._weight = start

    def _move(self, by: float) -> None:
        self._weight = min(max(self._weight + by, 0.0), self.highest)

    @property
    @abstractmethod
    def value(self) -> float:
        """λ for the batch that was observed last."""

    @abstractmethod
    def observe(self, entropy: float) -> None:
        """Move λ by the sampled entropy of a batch, in nats per token over all ranks."""

    def shares(self, accuracies: Tensor) -> Tensor | None:
        """(N,) parts of λ that rollouts get, by the share of right rollouts in their group (N,);
        None where all get λ."""
        return None

    @abstractmethod
    def metrics(self) -> dict[str, float]:
        """λ and what it follows, names relative to `policy/`."""

    def state_dict(self) -> dict[str, Any]:
        """Builtins only."""
        return {key: getattr(self, f"_{key}") for key in self._keys}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: unknown or missing keys raise ValueError naming them."""
        require_keys(type(self).__name__, state, self._keys)
        for key in self._keys:
            setattr(self, f"_{key}", state[key])


class AdaptiveEntropyBonus(MovingEntropyBonus):
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

    _keys = ("target", "weight", "active")

    def __init__(
        self,
        target: float | None = None,
        delta: float = 1e-4,
        highest: float = 5e-3,
        start: float = 0.0,
    ) -> None:
        super().__init__(delta, highest, start)
        _require_positive(target=target)
        self._target = target
        self._active = False

    @property
    def value(self) -> float:
        """λ for the batch that was observed last: 0 above the target."""
        return self._weight if self._active else 0.0

    def observe(self, entropy: float) -> None:
        if self._target is None:
            self._target = entropy
        self._move(self.delta if entropy < self._target else -self.delta)
        self._active = entropy <= self._target

    def metrics(self) -> dict[str, float]:
        return {
            "entropy_coef": self.value,
            "entropy_coef_held": self._weight,  # λ, also while it is not used
            "entropy_target": self._target or 0.0,
        }


class DifficultyEntropyBonus(MovingEntropyBonus):
    """Weight λᵢ of the entropy bonus that is larger for harder prompts, around an entropy target.

        λᵢ = λ · max(0, 1 - p̂ᵢ/ρ),   λ ← clip(λ + δ·(H* - H)/H*, 0, λ_max),   H* = τ·H₀

    with p̂ᵢ the share of right rollouts in the group and H₀ the entropy of the first batch (after
    Adaptive Entropy Regularization, arXiv 2510.10959, which names its three parts so: a coefficient
    by difficulty, a target below the initial entropy, and a global coefficient that follows the
    distance to it). The two closed forms are ours.

    Args:
        anchor: τ > 0, the target as a share of the first batch's entropy; published: 0.4. Where
            the entropy never falls so far, λ stays at 0.
        hard: ρ in (0, 1], accuracy of a group from which it gets no bonus.
        delta: δ > 0, what λ gains in a batch of no entropy.
        highest: λ_max > 0.
        start: λ before the first batch, in [0, λ_max].
    """

    _keys = ("target", "weight")

    def __init__(
        self,
        anchor: float = 0.4,
        hard: float = 0.5,
        delta: float = 1e-3,
        highest: float = 5e-3,
        start: float = 0.0,
    ) -> None:
        super().__init__(delta, highest, start)
        _require_positive(anchor=anchor)
        if not 0 < hard <= 1:
            raise ValueError(f"entropy_coef.hard={hard}: use an accuracy above 0, up to 1")
        self.anchor = anchor
        self.hard = hard
        self._target: float | None = None

    @property
    def value(self) -> float:
        """λ, which prompts without a right rollout get, for the batch that was observed last."""
        return self._weight

    def observe(self, entropy: float) -> None:
        if self._target is None:
            self._target = self.anchor * entropy
        missing = (self._target - entropy) / self._target if self._target else 0.0
        self._move(self.delta * missing)

    def shares(self, accuracies: Tensor) -> Tensor:
        """(N,) max(0, 1 - p̂/ρ)."""
        return (1 - accuracies / self.hard).clamp(min=0)

    def metrics(self) -> dict[str, float]:
        return {"entropy_coef": self._weight, "entropy_target": self._target or 0.0}


def _require_positive(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"entropy_coef.{name}={value}: use a number above 0")

"""What every sampling-temperature rule offers: decide, observe, state and metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol


@dataclass(frozen=True)
class EntropyReading:
    """What one step tells about the entropy of the sampling policy (nats per token).

    `sampled` is the token-weighted estimate over *all* rollouts of all ranks; the exact metrics
    come from a uniform sample of rollouts and are None where none was forwarded.
    """

    step: int
    temperature: float  # token-weighted mean sampling temperature of the step
    sampled: float
    tokens: int
    exact: float | None = None
    varentropy: float | None = None  # dH / d ln tau at fixed states
    curve: tuple[tuple[float, float], ...] = ()  # (temperature, exact entropy), ascending


@dataclass(frozen=True)
class Difficulty:
    """How hard the prompts of a step are, by what the rollout budget has seen of them."""

    ranks: tuple[float, ...]  # (P,) in [0, 1) of this process's prompts, 0 = easiest, NaN = unseen
    mean: float  # over the seen prompts of all processes; NaN where none is seen


@dataclass(frozen=True)
class Constant:
    """The same temperature for every rollout; calls fit `batch.temperature_of`."""

    temperature: float

    def __call__(self, prompts: Sequence[int], samples: Sequence[int]) -> list[float]:
        return [self.temperature] * len(prompts)


class TemperatureRule(Protocol):
    """A rule that picks the temperature(s) of a step and learns from the entropy it got."""

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        """Tell the length of the run in rollout steps, and how many steps before it is observed a
        step must be decided, beyond the usual one; before the first `decide`; not state."""

    def decide(self, step: int, difficulty: Difficulty | None = None) -> "TemperatureDecision":
        """Temperatures of rollout step `step` (0-based); the same however often asked for.

        `difficulty` is None where only the step's own temperature is wanted.
        """

    def observe(self, reading: EntropyReading) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Builtins only (loadable with torch's `weights_only=True`)."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: unknown or missing keys raise ValueError naming them."""

    def metrics(self) -> dict[str, float]:
        """Names relative to `temperature/`."""


class TemperatureDecision(Protocol):
    """Temperatures of single rollouts: (prompt rows (m,), sample indices (m,)) -> (m,)."""

    @property
    def temperature(self) -> float:
        """The step's own, which single rollouts may depart from."""

    def __call__(self, prompts: Sequence[int], samples: Sequence[int]) -> Sequence[float]: ...


def at_step_temperature(reading: EntropyReading, temperature: float) -> EntropyReading:
    """The reading of a step whose tokens had several temperatures, as one at its own temperature.

    The points of the entropy curve, at multiples of each token's own temperature, stand for the
    same multiples of the step's.
    """
    scale = temperature / reading.temperature
    curve = tuple((tau * scale, entropy) for tau, entropy in reading.curve)
    return replace(reading, temperature=temperature, curve=curve)

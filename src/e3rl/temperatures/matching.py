"""A policy at a given entropy: read between two evaluations whose entropies enclose it.

A hotter sampler alone explains much of what a temperature schedule seems to do for pass@k; the
control is the other arm at equal entropy. Entropies of evaluations are estimates: the temperature
at which one comes out as wanted cannot be searched for more closely than their noise. So the
policy is evaluated at temperatures a few per cent apart, and what it scores at an entropy is put
on the line in ln H between the two evaluations next to it.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

MATCHED_WITHIN = 0.005  # relative difference up to which two entropies count as equal
WIDEST = 0.1  # relative difference of entropies up to which a line is drawn between them
SMALLEST = 1e-6  # nats that a policy without entropy counts with, so that it has a logarithm
FEWEST_ROLLOUTS = 32  # per problem, of an evaluation whose entropy others are matched with

STEP = 1.05  # ratio of temperatures that are tried; entropies are then 4 to 10 % apart
FIRST_ELASTICITY = 1.0  # guess of d ln H / d ln tau before two points are known
ELASTICITIES = (0.35, 3.0)  # what a measured one is kept within

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Reading(Generic[K]):
    """How to read a policy at an entropy: weights (that sum to 1) of evaluations, by their keys.

    `entropy` is what the weighted evaluations have, nats per token: the one asked for where two
    enclose it closely enough, else that of the nearest evaluation.
    """

    weights: dict[K, float]
    entropy: float


def read_at_entropy(entropies: Mapping[K, float], target: float) -> Reading[K]:
    """The weights that put a line in ln H at `target`.

    `entropies` are those of evaluations, in nats per token, by a key such as the temperature.

    Raises ValueError where there is none, or the target is not positive.
    """
    if not target > 0:
        raise ValueError(f"entropy={target}: an entropy to match must be > 0 nats per token")
    known = {key: entropy for key, entropy in entropies.items() if entropy > 0}
    if not known:
        raise ValueError("no evaluation above temperature 0 to read an entropy from")
    below, above = enclose(known, target)
    if below is None or above is None or known[above] / known[below] - 1 > WIDEST:
        nearest = min(known, key=lambda key: abs(math.log(known[key] / target)))
        return Reading({nearest: 1.0}, known[nearest])
    if known[below] == known[above]:
        return Reading({below: 1.0}, known[below])
    share = math.log(target / known[below]) / math.log(known[above] / known[below])
    weights = {below: 1 - share, above: share}
    return Reading({key: weight for key, weight in weights.items() if weight}, target)


def enclose(entropies: Mapping[Any, float], target: float) -> tuple[Any, Any]:
    """Keys of the entropies next to the target from below and from above; None without one."""
    below = [key for key, entropy in entropies.items() if entropy <= target]
    above = [key for key, entropy in entropies.items() if entropy >= target]
    return (
        max(below, key=lambda key: entropies[key]) if below else None,
        min(above, key=lambda key: entropies[key]) if above else None,
    )


class EntropyMatcher:
    """Which temperatures to evaluate until two of them enclose an entropy closely enough.

    Temperatures are powers of `STEP`, to three digits, so that searches for several entropies of
    one policy have their evaluations in common; finer ones only where the entropy is steep.

    Args:
        target: entropy to enclose, nats per token.
        entropies: of the evaluations that there are, by temperature.
        most: evaluations that are asked for at most.
        bounds: lowest and highest temperature tried.
    """

    def __init__(
        self,
        target: float,
        entropies: Mapping[float, float] | None = None,
        most: int = 8,
        bounds: tuple[float, float] = (0.2, 4.0),
    ) -> None:
        if not target > 0:
            raise ValueError(f"entropy={target}: an entropy to match must be > 0 nats per token")
        self.target = target
        self.bounds = bounds
        self.entropies = {tau: max(known, SMALLEST) for tau, known in (entropies or {}).items()}
        self._left = most

    @property
    def reading(self) -> Reading[float]:
        """What the evaluations so far say of the policy at the entropy."""
        return read_at_entropy(self.entropies, self.target)

    @property
    def temperature(self) -> float:
        """Where the entropy is as wanted, by the line that `reading` is on."""
        logs = (weight * math.log(tau) for tau, weight in self.reading.weights.items())
        return math.exp(math.fsum(logs))

    def observe(self, temperature: float, entropy: float) -> None:
        """Add an evaluation: its token-weighted sampled entropy at a temperature."""
        self.entropies[temperature] = max(entropy, SMALLEST)
        self._left -= 1

    def next(self) -> float | None:
        """The temperature to evaluate next; None where nothing more is needed, or allowed."""
        if self._left <= 0:
            return None
        if not self.entropies:
            return 1.0
        below, above = enclose(self.entropies, self.target)
        if below is not None and above is not None:
            if self.entropies[above] / self.entropies[below] - 1 <= WIDEST:
                return None
            return self._between(below, above)
        nearest = below if below is not None else above
        assert nearest is not None
        return self._beyond(nearest)

    def _beyond(self, nearest: float) -> float | None:
        """On the other side of the entropy, as far as a line through the last two points says."""
        error = math.log(self.target / self.entropies[nearest])
        wanted = math.log(nearest) + error / self._slope(nearest)
        place = _rung_above(wanted) if error > 0 else -_rung_above(-wanted)
        low, high = self.bounds
        chosen = min(high, max(low, _temperature(place)))
        if chosen in self.entropies:  # noise: no line leads on, the next step does
            step = STEP if error > 0 else 1 / STEP
            chosen = min(high, max(low, _rounded(nearest * step)))
        return None if chosen in self.entropies else chosen

    def _between(self, below: float, above: float) -> float | None:
        """The step next to where a line between both meets the entropy, or the middle."""
        ends = math.log(below), math.log(above)
        share = math.log(self.target / self.entropies[below]) / math.log(
            self.entropies[above] / self.entropies[below]
        )
        place = _rung_above(ends[0] + share * (ends[1] - ends[0]))
        for each in (place - 1, place, place + 1):  # the last where the line meets it at an end
            within = min(ends) + 1e-3 < math.log(_temperature(each)) < max(ends) - 1e-3
            if within and _temperature(each) not in self.entropies:
                return _temperature(each)
        middle = _rounded(math.exp(sum(ends) / 2))
        return None if middle in self.entropies else middle

    def _slope(self, nearest: float) -> float:
        """d ln H / d ln tau next to the evaluation that is nearest to the entropy."""
        others = [tau for tau in self.entropies if tau != nearest]
        if not others:
            return FIRST_ELASTICITY
        other = min(others, key=lambda tau: abs(math.log(tau / nearest)))
        rise = math.log(self.entropies[other] / self.entropies[nearest])
        low, high = ELASTICITIES
        return min(max(rise / math.log(other / nearest), low), high)


def _rung_above(log_temperature: float) -> int:
    """The first power of `STEP` that is not below a temperature."""
    return math.ceil(log_temperature / math.log(STEP) - 1e-9)


def _temperature(place: int) -> float:
    return _rounded(STEP**place)


def _rounded(temperature: float) -> float:
    """Three digits, so that names of evaluations tell the temperature."""
    return float(f"{temperature:.3g}")

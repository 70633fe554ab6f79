"""How far the temperature moves for a given entropy error.

Each rule reads a step's metrics with `observe` and then answers `step(τ, ln α)`, where
ln α = ln(target / entropy). Limits on ln α and on the temperature belong to the caller.
"""

import math
from collections.abc import Mapping
from typing import Any, Protocol

from e3rl.checkpoints.strict_state import require_keys
from e3rl.functional.temperature import (
    elasticity_step,
    paper_step,
    solve_step,
    vocabulary_factor,
)
from e3rl.temperatures.base import EntropyReading

# Policies measured at temperatures from 0.6 to 1.5 lie between 0.2 and 1.5. Dividing by less would
# throw the temperature to a bound over nothing.
SMALLEST_ELASTICITY = 0.05


class Gain(Protocol):
    """A rule for one temperature step; τ stays where it is when ln α = 0."""

    def observe(self, reading: EntropyReading) -> None:
        """Take in a step's metrics; raises RuntimeError naming the switch of one that lacks."""

    def step(self, tau: float, log_alpha: float) -> float:
        """Next temperature, after the `observe` of the step's reading."""

    def state_dict(self) -> dict[str, Any]:
        """Builtins only."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: unknown or missing keys raise ValueError naming them."""


class PaperGain:
    """τ' = τ·(1 + τ·ln α/(ln V + ln ln V))  (arXiv 2505.18573 eq. 4).

    A slow integrator: with the true elasticity ε = d ln H/d ln τ it removes the part g = ε·τ/F of
    the error per step and lags a policy whose ln H falls by d per step by d/g.

    Args:
        vocabulary: V, the width of the logits (not the tokenizer's length).
    """

    def __init__(self, vocabulary: int) -> None:
        vocabulary_factor(vocabulary)
        self.vocabulary = vocabulary

    def observe(self, reading: EntropyReading) -> None:
        """Needs no figure beside the entropy."""

    def step(self, tau: float, log_alpha: float) -> float:
        return paper_step(tau, log_alpha, self.vocabulary)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("PaperGain", state, ())


class ElasticityGain:
    """ln τ' = ln τ + μ·ln α/ε̂ with the measured elasticity ε̂ = EMA(varentropy/entropy).

    The varentropy Var[ln p] is dH/d ln τ exactly, at fixed states, so this removes the part μ of
    the error per step whatever the policy.

    Args:
        mu: gain in (0, 2); 0.3 to 0.5 settles in a few steps and damps noise.
        ema: weight of the past in ε̂, in [0, 1).
    """

    def __init__(self, mu: float = 0.4, ema: float = 0.8) -> None:
        if not 0 < mu < 2:
            raise ValueError(f"mu={mu} must lie in (0, 2), where the loop settles; try 0.4")
        if not 0 <= ema < 1:
            raise ValueError(f"ema={ema} must lie in [0, 1); 0 switches the smoothing off")
        self.mu = mu
        self.ema = ema
        self._elasticity: float | None = None

    def observe(self, reading: EntropyReading) -> None:
        """Update ε̂. Raises RuntimeError where the exact entropy or varentropy is missing."""
        if reading.varentropy is None or reading.exact is None:
            raise RuntimeError(
                f"step {reading.step}: the elasticity gain needs the varentropy and none was "
                "measured; set module.probe.rows above 0"
            )
        now = max(reading.varentropy / max(reading.exact, 1e-6), SMALLEST_ELASTICITY)
        old = now if self._elasticity is None else self._elasticity
        self._elasticity = self.ema * old + (1 - self.ema) * now

    def step(self, tau: float, log_alpha: float) -> float:
        if self._elasticity is None:
            raise RuntimeError("elasticity gain: observe a reading before the first step")
        return elasticity_step(tau, log_alpha, self._elasticity, self.mu, limit=math.inf)

    def state_dict(self) -> dict[str, Any]:
        return {"elasticity": self._elasticity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("ElasticityGain", state, ("elasticity",))
        self._elasticity = state["elasticity"]


class SolveGain:
    """The temperature at which the measured curve H(τ) is α times its value now.

        ln τ' = ln τ + μ·(ln τ* - ln τ),   H_curve(τ*) = α·H_exact

    α comes from all rollouts; the sub-sample behind the curve lends its shape only, so that its
    larger noise cancels. Exact at fixed states, up to interpolation between the curve's points, of
    which the entropy at the sampling temperature is one, whether or not it was asked for.

    Args:
        mu: relaxation in (0, 1]; 1 goes all the way at once.
    """

    def __init__(self, mu: float = 1.0) -> None:
        if not 0 < mu <= 1:
            raise ValueError(f"mu={mu} must lie in (0, 1]; 1 goes all the way at once")
        self.mu = mu
        self._reading: EntropyReading | None = None

    def observe(self, reading: EntropyReading) -> None:
        """Keep the curve for the next `step`. Raises RuntimeError where there is none."""
        if not reading.curve or reading.exact is None:
            raise RuntimeError(
                f"step {reading.step}: the solve gain needs the entropy at several temperatures "
                "and none was measured; set module.probe.rows above 0 and module.probe.factors to "
                "multipliers around 1 such as [0.7, 0.85, 1.0, 1.2, 1.4]"
            )
        self._reading = reading

    def step(self, tau: float, log_alpha: float) -> float:
        if self._reading is None or self._reading.exact is None:
            raise RuntimeError("solve gain: observe a reading before the first step")
        level = max(self._reading.exact, 1e-6) * math.exp(log_alpha)
        solution = solve_step(_with_own_point(self._reading), level)
        return tau * math.exp(self.mu * math.log(solution / tau))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("SolveGain", state, ())


def _with_own_point(reading: EntropyReading) -> tuple[tuple[float, float], ...]:
    """The curve, with the point at the sampling temperature: where H* is reached, τ stays."""
    curve, tau, exact = reading.curve, reading.temperature, reading.exact
    if exact is None or any(math.isclose(tau, each, rel_tol=1e-6) for each, _ in curve):
        return curve
    return tuple(sorted((*curve, (tau, exact))))

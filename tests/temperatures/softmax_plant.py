"""A policy whose entropy is known exactly: one softmax over fixed logits that sharpen."""

import math
from dataclasses import dataclass, field

import numpy as np

from e3rl.temperatures.base import EntropyReading, TemperatureRule

VOCABULARY = 64
FACTORS = (0.7, 0.85, 1.0, 1.2, 1.4)


@dataclass
class Plant:
    """p = softmax(s·z/τ); each step multiplies s by exp(drift), so that H falls at a fixed τ."""

    drift: float = 0.0
    noise: float = 0.0  # standard deviation of ln of the sampled entropy
    sharpness: float = 1.0
    step: int = 0
    readings: list[EntropyReading] = field(default_factory=list)

    def moments(self, tau: float) -> tuple[float, float]:
        """Entropy and varentropy, nats."""
        logits = np.random.default_rng(7).normal(scale=2.0, size=VOCABULARY)
        logits = self.sharpness * logits / tau
        logp = logits - np.logaddexp.reduce(logits)
        p = np.exp(logp)
        entropy = -float(p @ logp)
        return entropy, float(p @ (logp + entropy) ** 2)

    def read(self, tau: float) -> EntropyReading:
        entropy, varentropy = self.moments(tau)
        luck = np.random.default_rng([3, self.step]).normal(scale=self.noise) if self.noise else 0.0
        return EntropyReading(
            step=self.step,
            temperature=tau,
            sampled=entropy * math.exp(luck),
            tokens=1000,
            exact=entropy,
            varentropy=varentropy,
            curve=tuple((f * tau, self.moments(f * tau)[0]) for f in FACTORS),
        )

    def run(self, rule: TemperatureRule, steps: int) -> list[dict[str, float]]:
        """Play steps from where both stand; metrics with the step's exact `entropy` and `tau`."""
        rows = []
        for _ in range(steps):
            tau = rule.decide(self.step).temperature
            reading = self.read(tau)
            rule.observe(reading)
            self.readings.append(reading)
            rows.append(rule.metrics() | {"tau": tau, "entropy": reading.exact or 0.0})
            self.step += 1
            self.sharpness *= math.exp(self.drift)
        return rows

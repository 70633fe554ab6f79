"""Finding the temperature at which a policy has a given entropy, by sampling from it.

A hotter sampler alone explains much of what a temperature schedule seems to do for pass@k; the
control is the other arm sampled at equal entropy.
"""

import math

FIRST_ELASTICITY = 0.7  # guess of d ln H / d ln tau before two points are known


class EntropyMatcher:
    """Secant search in (ln tau, ln H) that keeps to a bracket once it has one.

    Args:
        target: entropy to reach, nats per token.
        tolerance: relative error at which the search is over.
        max_pilots: measurements at most.
        bounds: lowest and highest temperature tried.
    """

    def __init__(
        self,
        target: float,
        tolerance: float = 0.01,
        max_pilots: int = 5,
        bounds: tuple[float, float] = (0.2, 4.0),
    ) -> None:
        if target <= 0:
            raise ValueError(f"entropy={target}: an entropy to match must be > 0 nats per token")
        self.target = target
        self.tolerance = tolerance
        self.max_pilots = max_pilots
        self.bounds = bounds
        self._points: list[tuple[float, float]] = []  # (ln tau, ln H - ln target)

    @property
    def temperature(self) -> float:
        """The best guess so far; 1 before anything was measured."""
        if not self._points:
            return 1.0
        low, high = (math.log(bound) for bound in self.bounds)
        return math.exp(min(high, max(low, self._guess())))

    @property
    def done(self) -> bool:
        if not self._points:
            return False
        close = abs(self._points[-1][1]) <= math.log1p(self.tolerance)
        return close or len(self._points) >= self.max_pilots

    def observe(self, temperature: float, entropy: float) -> None:
        """Add a measurement (token-weighted sampled entropy at a temperature)."""
        error = math.log(max(entropy, 1e-6) / self.target)
        self._points.append((math.log(temperature), error))

    def _guess(self) -> float:
        below = max((p for p in self._points if p[1] <= 0), key=lambda p: p[1], default=None)
        above = min((p for p in self._points if p[1] > 0), key=lambda p: p[1], default=None)
        if below and above and below[0] < above[0]:
            share = -below[1] / (above[1] - below[1])
            return below[0] + share * (above[0] - below[0])
        x, error = self._points[-1]
        return x - error / FIRST_ELASTICITY

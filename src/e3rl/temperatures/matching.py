"""Finding the temperature at which a policy has a given entropy, by sampling from it.

A hotter sampler alone explains much of what a temperature schedule seems to do for pass@k; the
control is the other arm sampled at equal entropy.
"""

import math

FIRST_ELASTICITY = 0.7  # guess of d ln H / d ln tau before two points are known
ELASTICITIES = (0.35, 3.0)  # what a measured one is kept within
APART = 0.1  # in ln tau; the slope between nearer points is sampling noise


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
            return self._between(below, above)
        best, *others = sorted(self._points, key=lambda point: abs(point[1]))
        slope = FIRST_ELASTICITY
        if far := [p for p in others if abs(p[0] - best[0]) >= APART]:
            measured = (far[0][1] - best[1]) / (far[0][0] - best[0])
            slope = min(max(measured, ELASTICITIES[0]), ELASTICITIES[1])
        return best[0] - best[1] / slope

    def _between(self, below: tuple[float, float], above: tuple[float, float]) -> float:
        """False position; the end that has stood still counts half for each time it did (the
        Illinois rule), since on a curved entropy all guesses would fall on one side."""
        sides = [error > 0 for _, error in self._points]
        repeats = next((i for i, side in enumerate(reversed(sides)) if side != sides[-1]), 1)
        lower, upper = below[1], above[1]
        if sides[-1]:
            lower /= 2 ** (repeats - 1)
        else:
            upper /= 2 ** (repeats - 1)
        return below[0] - lower / (upper - lower) * (above[0] - below[0])

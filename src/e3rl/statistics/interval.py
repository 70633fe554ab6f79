"""`Interval`, and `Estimate`: a mean with a standard error, from which t intervals are made."""

import math
from dataclasses import dataclass

from e3rl.statistics.student import t_bound, t_p_value


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; the bounds are NaN where too little was seen for one."""

    mean: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Estimate:
    """A mean, its standard error, and the degrees of freedom with which that is known.

    The standard error is NaN where a single unit was seen. `center` is where the interval is built
    around, where that is not the mean itself; `largest` is what no value exceeds in size, and so
    no bound, such as 1 for a difference of two shares.
    """

    mean: float
    standard_error: float
    df: float
    center: float | None = None
    largest: float = math.inf

    def interval(self, level: float = 0.95) -> Interval:
        """Student's interval: center ± t·standard error, cut at ±`largest`.

        Raises ValueError as `t_bound`.
        """
        if math.isnan(self.standard_error):
            return Interval(self.mean, math.nan, math.nan, level)
        half = t_bound(level, self.df) * self.standard_error
        low, high = self._center - half, self._center + half
        return Interval(self.mean, max(low, -self.largest), min(high, self.largest), level)

    @property
    def p_value(self) -> float:
        """Two-sided p of a mean of 0; NaN where there is no interval."""
        if math.isnan(self.standard_error):
            return math.nan
        if self.standard_error == 0:
            return float(self._center == 0)
        return t_p_value(self._center / self.standard_error, self.df)

    @property
    def _center(self) -> float:
        return self.mean if self.center is None else self.center

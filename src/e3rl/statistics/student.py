"""Student's t and Fisher's F by the incomplete beta function: tails, quantiles, power.

All of it in plain floats, to twelve digits; degrees of freedom need not be whole.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

TINY = 1e-300
NORMAL = NormalDist()


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a, b > 0 and x in [0, 1].

    By its continued fraction (DLMF 8.17.22), evaluated as Lentz does (Thompson & Barnett 1986).
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # there the fraction converges slowly
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    log_front += a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away_from_0(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / _away_from_0(1 + term * d), _away_from_0(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def t_p_value(t: float, df: float) -> float:
    """Two-sided p: the probability that |T| exceeds |t|, for T of Student's t."""
    if math.isinf(t):
        return 0.0
    return incomplete_beta(df / 2, 0.5, df / (df + t * t))


@lru_cache(maxsize=4096)
def t_bound(level: float, df: float) -> float:
    """The t that |T| stays below with probability `level`: 2.776 for 0.95 and 4 degrees.

    Raises ValueError for a level outside (0, 1) or degrees of freedom of 0 or less.
    """
    if not 0 < level < 1 or not df > 0:
        raise ValueError(f"level={level} must lie in (0, 1), and df={df} be above 0")
    goal, t = math.log(1 - level), NORMAL.inv_cdf((1 + level) / 2)
    log_front = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * math.pi) / 2
    for _ in range(100):  # Newton in log p against log t, which is concave
        p = t_p_value(t, df)
        density = math.exp(log_front - (df + 1) / 2 * math.log1p(t * t / df))
        step = (math.log(p) - goal) * p / (2 * density * t)
        t *= math.exp(step)
        if abs(step) < 1e-13:
            break
    return t


def f_bound(q: float, df1: float, df2: float) -> float:
    """The quantile q of Fisher's F with df1 and df2 degrees of freedom, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        below = incomplete_beta(df1 / 2, df2 / 2, middle) < q
        low, high = (middle, high) if below else (low, middle)
    return df2 * low / (df1 * (1 - low))


def t_power(shift: float, df: float, level: float) -> float:
    """How often a two-sided t test at 1 - level finds a mean that is `shift` standard errors off 0.

        P(|Z + shift| > t·U),   U = √(χ²/df)

    for t of `t_bound`, integrated over the density of U.
    """
    bound, spread = t_bound(level, df), 8 / math.sqrt(df)
    low, high = max(0.0, 1 - spread), 1 + spread
    u = low + (np.arange(480) + 0.5) / 480 * (high - low)
    log_density = (df - 1) * np.log(u) - df * u * u / 2
    density = np.exp(log_density - log_density.max())
    found = [NORMAL.cdf(shift - bound * x) + NORMAL.cdf(-shift - bound * x) for x in u.tolist()]
    return float(density @ np.array(found) / density.sum())


@lru_cache(maxsize=4096)
def detectable_shift(df: float, level: float, power: float) -> float:
    """The shift, in standard errors, that `t_power` finds with this power.

    Raises ValueError for shares outside (0, 1), or a power that no shift at all has.
    """
    if not 0 < level < 1 or not 0 < power < 1:
        raise ValueError(f"level={level} and power={power} must lie in (0, 1)")
    if power <= 1 - level:
        raise ValueError(f"power={power} is no more than the error 1 - level={level}")
    goal = NORMAL.inv_cdf(power)

    def gap(shift: float) -> float:
        found = min(max(t_power(shift, df, level), 1e-16), 1 - 1e-16)
        return NORMAL.inv_cdf(found) - goal

    low, high = 0.0, t_bound(level, df) + 1
    at_low, at_high = gap(low), gap(high)
    while at_high < 0:
        low, high, at_low = high, 2 * high, at_high
        at_high = gap(high)
    return _root(gap, low, high, at_low, at_high)


def _root(
    function: Callable[[float], float], low: float, high: float, at_low: float, at_high: float
) -> float:
    """Where a function that is below 0 at `low` and not at `high` is 0, to a part in 10⁹.

    By false position; the value at an end that stays twice is halved (the Illinois rule, Dowell &
    Jarratt 1971), so that both ends move in.
    """
    x, before, moved = high, low, ""
    while abs(x - before) > 1e-9 * abs(x):
        before, x = x, (low * at_high - high * at_low) / (at_high - at_low)
        y = function(x)
        if y < 0:
            low, at_low, at_high = x, y, at_high / (2 if moved == "low" else 1)
            moved = "low"
        else:
            high, at_high, at_low = x, y, at_low / (2 if moved == "high" else 1)
            moved = "high"
    return x


def _away_from_0(value: float) -> float:
    return value if abs(value) > TINY else TINY

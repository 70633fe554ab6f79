"""How many seeds and problems a difference needs to be seen, from the variances at hand.

The model is that of `means`, of paired differences between two arms, and so is the test: a
difference is found where its t interval leaves 0 out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import limit_by_seeds
from e3rl.statistics.student import detectable_shift, f_bound

ENDLESS = 1e7  # degrees of freedom that stand for a variance that is known
MOST = 1 << 20  # seeds or problems above which none are enough


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of a paired difference: between seeds, between problems, and of the rest.

    Those between may come out negative, which says that they are small against the rest.
    """

    seed: float
    problem: float
    residual: float

    def expected(self, n_seeds: int, n_problems: int) -> Estimate:
        """Standard error and degrees of freedom of a mean difference of 0 of such a design.

            SE² = σ²ₐ/S + σ²_b/P + σ²ₑ/(S·P)

        Components below 0 count as 0. With one seed nothing is known of others, and the problems
        alone count.

        Raises ValueError for fewer than one seed, or two problems.
        """
        if n_seeds < 1 or n_problems < 2:
            raise ValueError(f"n_seeds={n_seeds} must be at least 1, n_problems={n_problems} 2")
        cells = n_seeds * n_problems
        rest = self.residual / cells
        problems = max(self.problem, 0.0) / n_problems + rest
        if n_seeds == 1:
            return Estimate(0.0, math.sqrt(problems), n_problems - 1)
        seeds = max(self.seed, 0.0) / n_seeds + rest
        variance = seeds + problems - rest
        spread = seeds**2 / (n_seeds - 1) + problems**2 / (n_problems - 1)
        spread += rest**2 / ((n_seeds - 1) * (n_problems - 1))
        df = max(1.0, variance**2 / spread) if spread > 0 else n_seeds - 1
        return Estimate(0.0, math.sqrt(variance), df)


def variance_components(differences: ArrayLike) -> VarianceComponents:
    """Components of (S, P) paired differences, from the mean squares of a two-way layout.

        E[MSₐ] = P·σ²ₐ + σ²ₑ,    E[MS_b] = S·σ²_b + σ²ₑ,    E[MSₑ] = σ²ₑ

    (Searle, Casella & McCulloch, Variance Components, section 4.5.) Unbiased, so an estimate may
    be negative.

    Raises:
        ValueError: fewer than two seeds or problems, NaN or infinite values.
    """
    table = _table(differences)
    n_seeds, n_problems = table.shape
    seeds, problems, residual = _mean_squares(table)
    return VarianceComponents(
        (seeds - residual) / n_problems, (problems - residual) / n_seeds, residual
    )


def seed_variance_interval(differences: ArrayLike, level: float = 0.95) -> Interval:
    """σ²ₐ of (S, P) paired differences with its interval, which may lie partly below 0.

        (MSₐ - F·MSₑ)/(P·F∞),   F of S-1 and (S-1)(P-1), F∞ of S-1 and endless degrees

    with F's upper quantile for the lower bound (Williams 1962, Biometrika 49). From three seeds
    its bounds are a factor of 146 apart where seeds make the variance.

    Raises ValueError as `variance_components`.
    """
    table = _table(differences)
    n_seeds, n_problems = table.shape
    seeds, _, residual = _mean_squares(table)
    df, tail = n_seeds - 1, (1 - level) / 2
    low, high = (
        (seeds - f_bound(q, df, df * (n_problems - 1)) * residual)
        / (n_problems * f_bound(q, df, ENDLESS))
        for q in (1 - tail, tail)
    )
    return Interval((seeds - residual) / n_problems, low, high, level)


def detectable_difference(found: Estimate, level: float = 0.95, power: float = 0.8) -> float:
    """Smallest true difference that a t test at 1 - level finds with this power.

    Of a test with the estimate's standard error and degrees of freedom, by the noncentral t.
    Raises ValueError for shares outside (0, 1).
    """
    return found.standard_error * detectable_shift(found.df, level, power)


def error_range(df: float, level: float = 0.9) -> tuple[float, float]:
    """By which factors the true standard error may differ from an estimated one.

        √(df/χ²) at the upper and the lower quantile of χ² with df degrees of freedom

    With 4 degrees, those of five seeds that make all of the variance, [.65, 2.37].
    """
    tail = (1 - level) / 2
    low, high = (1 / math.sqrt(f_bound(q, df, ENDLESS)) for q in (1 - tail, tail))
    return low, high


def seeds_needed(
    components: VarianceComponents,
    difference: float,
    n_problems: int,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Training seeds per arm, 2 or more, that make `difference` detectable on so many problems.

    None where no number of seeds suffices: the problems alone are too few.
    """
    return _smallest_number(
        lambda n: _detectable(components, n, n_problems, level, power), difference
    )


def problems_needed(
    components: VarianceComponents,
    difference: float,
    n_seeds: int,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Problems, 2 or more, that make `difference` detectable with so many seeds per arm.

    None where no number of problems suffices: the seeds alone are too few.
    """
    return _smallest_number(lambda n: _detectable(components, n_seeds, n, level, power), difference)


def _detectable(
    components: VarianceComponents, n_seeds: int, n_problems: int, level: float, power: float
) -> float:
    """What such a design finds by the test that judges it, see `means.limit_by_seeds`."""
    expected = limit_by_seeds(components.expected(n_seeds, n_problems), n_seeds)
    return detectable_difference(expected, level, power)


def _smallest_number(detectable: Callable[[int], float], difference: float) -> int | None:
    """The smallest n from 2 on that makes the detectable difference small enough, by bisection."""
    if not difference > 0:
        raise ValueError(f"difference={difference} must be above 0; it is taken two-sided")
    # What a design detects exactly suffices, up to rounding.
    goal = difference * (1 + 1e-9)
    low, high = 1, 2
    while detectable(high) > goal:
        low, high = high, 2 * high
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable(middle) <= goal else (middle, high)
    return high


def _mean_squares(table: NDArray[np.float64]) -> tuple[float, float, float]:
    """MSₐ, MS_b and MSₑ of seeds, problems and the rest."""
    n_seeds, n_problems = table.shape
    by_seed, by_problem = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_problem + table.mean()
    return (
        n_problems * float(by_seed.var(ddof=1)),
        n_seeds * float(by_problem.var(ddof=1)),
        float((rest**2).sum() / ((n_seeds - 1) * (n_problems - 1))),
    )


def _table(differences: ArrayLike) -> NDArray[np.float64]:
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError(
            f"variance components need at least two seeds and two problems, got {table.shape} "
            "(seeds, problems); run another seed"
        )
    if not np.isfinite(table).all():
        raise ValueError("some differences are NaN or infinite; leave those problems out")
    return table

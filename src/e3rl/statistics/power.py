"""How many seeds and problems a difference needs to be seen, from the variances at hand.

Model of a paired difference between two arms, for training seed s and problem p:

    dₛₚ = μ + aₛ + bₚ + eₛₚ,      Var(mean) = σ²ₐ/S + σ²_b/P + σ²ₑ/(S·P)

a is what a whole training run has by luck, b how problems differ in what they gain, e the rest
(sampling noise above all, which more rollouts per problem lower).
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class VarianceComponents:
    """Variances of a paired difference: between seeds, between problems, and of the rest."""

    seed: float
    problem: float
    residual: float

    def standard_error(self, n_seeds: int, n_problems: int) -> float:
        """√(σ²ₐ/S + σ²_b/P + σ²ₑ/(S·P))."""
        variance = self.seed / n_seeds + self.problem / n_problems
        return math.sqrt(variance + self.residual / (n_seeds * n_problems))


def variance_components(differences: ArrayLike) -> VarianceComponents:
    """Components of (S, P) paired differences, from the mean squares of a two-way layout.

        E[MSₐ] = P·σ²ₐ + σ²ₑ,    E[MS_b] = S·σ²_b + σ²ₑ,    E[MSₑ] = σ²ₑ

    (Searle, Casella & McCulloch, Variance Components, section 4.5.) Unbiased, but for negative
    estimates, which become 0. With few seeds σ²ₐ is hardly known: the bounds of its 95 %
    interval from S = 3 are a factor of 146 apart.

    Raises:
        ValueError: fewer than two seeds or problems, NaN or infinite values.
    """
    table = np.asarray(differences, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError(
            f"variance components need at least two seeds and two problems, got {table.shape} "
            "(seeds, problems); run another seed"
        )
    if not np.isfinite(table).all():
        raise ValueError("some differences are NaN or infinite; leave those problems out")
    n_seeds, n_problems = table.shape
    by_seed, by_problem = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_seed[:, None] - by_problem + table.mean()
    residual = float((rest**2).sum() / ((n_seeds - 1) * (n_problems - 1)))
    seed = float(by_seed.var(ddof=1)) - residual / n_problems
    problem = float(by_problem.var(ddof=1)) - residual / n_seeds
    return VarianceComponents(max(seed, 0.0), max(problem, 0.0), residual)


def detectable_difference(
    components: VarianceComponents,
    n_seeds: int,
    n_problems: int,
    level: float = 0.95,
    power: float = 0.8,
) -> float:
    """Smallest true difference that a two-sided test at 1 - level finds with this power.

        D = (z_{(1+level)/2} + z_power) · SE(S, P)

    With the normal distribution, so it is a little too small below about ten seeds.

    Raises ValueError for fewer than one seed or problem, or shares outside (0, 1).
    """
    if n_seeds < 1 or n_problems < 1:
        raise ValueError(f"n_seeds={n_seeds} and n_problems={n_problems} must be at least 1")
    return _standard_errors(level, power) * components.standard_error(n_seeds, n_problems)


def seeds_needed(
    components: VarianceComponents,
    difference: float,
    n_problems: int,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Training seeds per arm that make `difference` detectable on so many problems.

        S ≥ (σ²ₐ + σ²ₑ/P) / (D²/z² - σ²_b/P)

    None where no number of seeds suffices: the problems alone are too few.
    """
    fixed = components.problem / n_problems
    per_seed = components.seed + components.residual / n_problems
    return _smallest_number(per_seed, fixed, difference, _standard_errors(level, power))


def problems_needed(
    components: VarianceComponents,
    difference: float,
    n_seeds: int,
    level: float = 0.95,
    power: float = 0.8,
) -> int | None:
    """Problems that make `difference` detectable with so many seeds per arm.

        P ≥ (σ²_b + σ²ₑ/S) / (D²/z² - σ²ₐ/S)

    None where no number of problems suffices: the seeds alone are too few.
    """
    swapped = replace(components, seed=components.problem, problem=components.seed)
    return seeds_needed(swapped, difference, n_seeds, level, power)


def _smallest_number(per_unit: float, fixed: float, difference: float, z: float) -> int | None:
    if not difference > 0:
        raise ValueError(f"difference={difference} must be above 0; it is taken two-sided")
    room = (difference / z) ** 2 - fixed
    # The ratio is a whole number up to rounding where the design is exactly sufficient.
    return None if room <= 0 else max(1, math.ceil(per_unit / room * (1 - 1e-12)))


def _standard_errors(level: float, power: float) -> float:
    if not 0 < level < 1 or not 0 < power < 1:
        raise ValueError(f"level={level} and power={power} must lie in (0, 1)")
    normal = NormalDist()
    return normal.inv_cdf((1 + level) / 2) + normal.inv_cdf(power)

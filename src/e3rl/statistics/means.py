"""Means over training seeds and problems, with standard errors that tell of other such.

The model of a table of seeds s and problems p:

    yₛₚ = μ + aₛ + bₚ + eₛₚ,      Var(mean) = σ²ₐ/S + σ²_b/P + σ²ₑ/(S·P)

a is what a whole training run has by luck, b what a problem is like, noise of validation that all
seeds share included, and e the rest. The mean squares of the two-way layout estimate it,

    (MSₐ + max(MS_b - MSₑ, 0)) / (S·P),

with as many degrees of freedom as Satterthwaite (1946, Biometrics Bulletin 2) counts,

    df = V² / Σ vⱼ²/dfⱼ,   of the three terms vⱼ with S-1, P-1 and (S-1)(P-1) degrees, at least 1.

Where seeds make the variance this is Student's t with S - 1 degrees, where problems do the one
with P - 1. Where seeds happen to tie and problems differ no more than the rest does, this comes to
0, and MSₑ/(S·P) stands in, which neither term is below in the mean.

No replicates are drawn, so equal tables have equal intervals to the last digit. The problem is the
unit, never the single rollout: rollouts of one problem share its difficulty.
How often such intervals hold the truth is simulated in experiments/coverage.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from e3rl.statistics.interval import Estimate, Interval

Reals = NDArray[np.float64]
TIED = 1e-24  # a variance of shares that is no more than rounding
ENOUGH_SEEDS = 5  # from which on a test may count degrees of freedom beyond those of the seeds


class Term(NamedTuple):
    """One part of a variance: its value, and the degrees of freedom of its mean square."""

    value: float
    df: float


def mean_over_units(values: ArrayLike) -> Estimate:
    """The mean of (P,) independent units: one value per problem, or per training seed.

    Its standard error is s/√P with P - 1 degrees of freedom, NaN for a single unit.

    Raises:
        ValueError: no values, or NaN or infinite ones.
    """
    column = _finite(values, 1)
    if len(column) == 1:
        return Estimate(float(column[0]), math.nan, math.nan)
    error = math.sqrt(column.var(ddof=1) / len(column))
    return Estimate(float(column.mean()), error, len(column) - 1)


def difference_of_units(a: ArrayLike, b: ArrayLike, paired: bool) -> Estimate:
    """mean(a) - mean(b) of independent units, (S,) and (S',), or of pairs of them in one order.

    Of units that are no pairs this is Welch's (1947, Biometrika 34).

    Raises ValueError as `mean_over_units`, and for pairs of unlike number.
    """
    first, second = _finite(a, 1), _finite(b, 1)
    if not paired:
        mine, other = mean_over_units(first), mean_over_units(-second)
        half = mean_of_estimates([mine, other])
        return Estimate(2 * half.mean, 2 * half.standard_error, half.df)
    if first.shape != second.shape:
        raise ValueError(f"pairs need equally many units, got {first.shape} and {second.shape}")
    return mean_over_units(first - second)


def mean_over_seeds_and_problems(values: ArrayLike, skewed: bool = False) -> Estimate:
    """The mean of (S, P) values of seeds that saw the same problems; of one seed over problems.

    Of `skewed` values, such as shares near 0, few problems may make the variance. That of P values
    with an excess of κ in their kurtosis is known with 2/(2/(P-1) + κ/P) degrees of freedom in
    place of P - 1 (O'Neill 2014, The American Statistician 68).

    Raises ValueError as `mean_over_units`.
    """
    table = _finite(values, 2)
    if len(table) == 1:
        return _mean_over_problems(table[0], skewed)
    seeds, rest = _mean_squares(table)
    problems = _term_of_problems(table.mean(axis=0), skewed)
    return _estimate(float(table.mean()), [seeds], problems, [rest])


def difference_over_seeds_and_problems(
    a: ArrayLike, b: ArrayLike, paired_seeds: bool = False
) -> Estimate:
    """mean(a) - mean(b) of two methods on the same problems, (S, P) and (S', P).

    Seeds count for each method by itself, or, for runs that share what a seed decides (first
    policy, order of prompts), as pairs. Where a method has one seed, nothing is known of others,
    and the estimate is over problems alone.

    Raises:
        ValueError: as `mean_over_units`, or tables that do not fit together.
    """
    first, second = _finite(a, 2), _finite(b, 2)
    if first.shape[1] != second.shape[1] or (paired_seeds and first.shape != second.shape):
        raise ValueError(
            f"tables {first.shape} and {second.shape} must cover the same problems"
            f"{', and the same seeds to pair them' if paired_seeds else ''}"
        )
    if paired_seeds:
        return mean_over_seeds_and_problems(first - second)
    by_problem = first.mean(axis=0) - second.mean(axis=0)
    if min(len(first), len(second)) == 1:
        return _mean_over_problems(by_problem)
    (seeds_a, rest_a), (seeds_b, rest_b) = _mean_squares(first), _mean_squares(second)
    mean = float(first.mean() - second.mean())
    return _estimate(mean, [seeds_a, seeds_b], _term_of_problems(by_problem), [rest_a, rest_b])


def mean_over_sets(tables: Sequence[ArrayLike]) -> Estimate:
    """The mean over sets of seeds, such as studies, each (Sᵢ, P) on the same P problems; all sets
    have one weight. It tells of other such sets: these may differ by more than their seeds do.

    The variance is that of `mean_over_seeds_and_problems` with the sets' means in the place of
    seeds, but sets that happen to lie closer together than the luck of their own seeds puts them
    count with that luck, and with the sets' N - 1 degrees of freedom all the same, as Knapp and
    Hartung (2003, Statistics in Medicine 22) bound theirs. So an interval of sets that differ by
    luck alone holds the truth more often than it says.

    Raises ValueError as `mean_over_units`, for fewer than two sets, sets of one seed, and unlike
    numbers of problems.
    """
    means = _set_means(tables)
    (_, rest), problems = _mean_squares(means), _term_of_problems(means.mean(axis=0))
    return _estimate(float(means.mean()), [_spread_of_sets(tables)], problems, [rest])


def interval_of_another_set(tables: Sequence[ArrayLike], level: float = 0.95) -> Interval:
    """Where the difference of one more set would come out on the same problems, its luck in it:
    mean ± t·s·√(1 + 1/N) of N sets, with the spread s of `mean_over_sets` (Higgins, Thompson and
    Spiegelhalter 2009, Journal of the Royal Statistical Society A 172, with equal weights).

    What problems make of the mean's variance is not in it, since that set would have these; it
    does not shrink to a point with many sets.

    Raises ValueError as `mean_over_sets` and `Estimate.interval`.
    """
    spread = _spread_of_sets(tables)
    error = math.sqrt(spread.value * (len(tables) + 1))
    return Estimate(float(_set_means(tables).mean()), error, spread.df).interval(level)


def limit_by_seeds(estimate: Estimate, n_seeds: int) -> Estimate:
    """The estimate as a test takes it: of fewer than five seeds with S - 1 degrees of freedom.

    Where few seeds happen to be alike, Satterthwaite's count comes out large just when the standard
    error is too small. An interval of 95 % bears that, the far tails that corrected p values need
    do not: of three seeds a p below .001 is up to 14 times as frequent as it says, of five 3.7
    times, of ten 1.4 times. One seed, whose estimate is over problems alone, stays as it is.
    """
    if not 1 < n_seeds < ENOUGH_SEEDS:
        return estimate
    return replace(estimate, df=min(estimate.df, n_seeds - 1))


def mean_of_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of independent estimates, such as those of several problem sets.

    Raises ValueError for none.
    """
    if not estimates:
        raise ValueError("a mean of estimates needs at least one")
    n = len(estimates)
    mean = sum(each.mean for each in estimates) / n
    centers = [each.mean if each.center is None else each.center for each in estimates]
    if any(math.isnan(each.standard_error) for each in estimates):
        return Estimate(mean, math.nan, math.nan)
    terms = [Term((each.standard_error / n) ** 2, each.df) for each in estimates]
    variance = sum(term.value for term in terms)
    df, largest = _satterthwaite(variance, terms), max(each.largest for each in estimates)
    return Estimate(mean, math.sqrt(variance), df, sum(centers) / n, largest)


def _estimate(mean: float, seeds: Sequence[Term], problems: Term, rest: Sequence[Term]) -> Estimate:
    """From the terms of each method's seeds, of problems and of each method's rest."""
    noise = sum(term.value for term in rest)
    variance = sum(term.value for term in seeds) + max(problems.value - noise, 0.0)
    if variance <= TIED:
        variance = noise
    df = _satterthwaite(variance, [*seeds, problems, *rest])
    return Estimate(mean, math.sqrt(variance), df)


def _mean_over_problems(column: Reals, skewed: bool = False) -> Estimate:
    if len(column) == 1:
        return mean_over_units(column)
    term = _term_of_problems(column, skewed)
    return Estimate(float(column.mean()), math.sqrt(term.value), term.df)


def _term_of_problems(by_problem: Reals, skewed: bool = False) -> Term:
    """s²/P, and its degrees of freedom."""
    n = len(by_problem)
    if n == 1:
        return Term(0.0, 1)
    around = by_problem - by_problem.mean()
    square, tails = float((around**2).mean()), 0.0
    if skewed and square > 0:
        tails = max(0.0, float((around**4).mean()) / square**2 - 3)
    return Term(square / (n - 1), 2 / (2 / (n - 1) + tails / n))


def _mean_squares(table: Reals) -> tuple[Term, Term]:
    """MSₐ/(S·P) and MSₑ/(S·P) of an (S, P) table."""
    n_seeds, n_problems = table.shape
    by_seed = table.mean(axis=1)
    seeds = Term(float(by_seed.var(ddof=1)) / n_seeds, n_seeds - 1)
    if n_problems == 1:
        return seeds, Term(0.0, 1)
    rest = table - by_seed[:, None] - table.mean(axis=0) + table.mean()
    df = (n_seeds - 1) * (n_problems - 1)
    return seeds, Term(float((rest**2).sum()) / df / table.size, df)


def _set_means(tables: Sequence[ArrayLike]) -> Reals:
    """(N, P) means of sets over their seeds."""
    found = [_finite(table, 2) for table in tables]
    if len(found) < 2 or min(map(len, found)) < 2 or len({table.shape[1] for table in found}) > 1:
        raise ValueError(
            "a mean over sets needs two or more of two or more seeds each, on the same problems, "
            f"got {[table.shape for table in found]}"
        )
    return np.stack([table.mean(axis=0) for table in found])


def _spread_of_sets(tables: Sequence[ArrayLike]) -> Term:
    """What sets make of the variance of their mean: by their own spread, or by the luck of their
    seeds where that is more."""
    between, _ = _mean_squares(_set_means(tables))
    by_seed = [_finite(table, 2).mean(axis=1) for table in tables]
    n = len(by_seed)
    parts = [Term(float(x.var(ddof=1)) / len(x) / n**2, len(x) - 1) for x in by_seed]
    luck = sum(part.value for part in parts)
    return max(between, Term(luck, min(between.df, _satterthwaite(luck, parts))))


def _satterthwaite(variance: float, terms: Sequence[Term]) -> float:
    spread = sum(term.value**2 / term.df for term in terms)
    return max(1.0, variance**2 / spread) if spread > 0 else min(term.df for term in terms)


def _finite(values: ArrayLike, axes: int) -> Reals:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != axes or table.size == 0:
        wanted = "(P,) values" if axes == 1 else "a filled (seeds, problems) table"
        raise ValueError(f"a mean needs {wanted}, got {table.shape}")
    if not np.isfinite(table).all():
        raise ValueError(
            f"{int((~np.isfinite(table)).sum())} of {table.size} values are NaN or infinite; "
            "leave those problems out"
        )
    return table

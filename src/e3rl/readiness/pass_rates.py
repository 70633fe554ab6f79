"""Pass rates estimated from a few rollouts of some prompts, and what groups they promise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.posterior import BetaPosterior
from e3rl.statistics.interval import Interval
from e3rl.statistics.shares import share_interval

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]

# Priors that are tried: means, and strengths a₀ + b₀ from U-shaped to peaked at the mean.
MEANS = 1 / (1 + np.exp(-np.linspace(-6, 6, 49)))
STRENGTHS = np.geomspace(0.1, 100, 31)


def fit_prior(right: Counts, rollouts: Counts) -> tuple[float, float]:
    """The Beta(a₀, b₀) of the pass rates under which the counts are likeliest (empirical Bayes).

    Rollouts of prompt i are Binomial(nᵢ, pᵢ) with pᵢ ~ Beta(a₀, b₀), so the logarithm of their
    likelihood, up to what does not depend on the prior, is Σᵢ ln B(a₀ + cᵢ, b₀ + nᵢ - cᵢ) - ln
    B(a₀, b₀). Searched on a grid of `MEANS` and `STRENGTHS`.

    Args:
        right, rollouts: (P,) counts, right <= rollouts.
    """
    pairs, times = np.unique(np.stack([right, rollouts]), axis=1, return_counts=True)
    c, n = pairs
    mean, strength = (x.ravel() for x in np.meshgrid(MEANS, STRENGTHS))
    a, b = mean * strength, (1 - mean) * strength
    most = int(n.max())
    likelihood = (
        _log_rising_factorials(a, most)[:, c]
        + _log_rising_factorials(b, most)[:, n - c]
        - _log_rising_factorials(a + b, most)[:, n]
    )
    best = int(np.argmax(likelihood @ times))
    return float(a[best]), float(b[best])


def _log_rising_factorials(x: Reals, most: int) -> Reals:
    """(M, most + 1) ln x(x + 1)...(x + k - 1) for k = 0, ..., most."""
    logs = np.log(x[:, None] + np.arange(most))
    return np.concatenate([np.zeros((x.size, 1)), np.cumsum(logs, axis=1)], axis=1)


def fit_posterior(right: Counts, rollouts: Counts) -> BetaPosterior:
    """The posterior Beta distribution of every prompt's pass rate, under the prior of `fit_prior`.

    Counts alone would call a prompt impossible that was not solved in eight rollouts; a pass rate
    of 5 % looks like that in two cases of three.
    """
    a, b = fit_prior(right, rollouts)
    wrong = (rollouts - right).astype(np.float64)
    return BetaPosterior(a + right.astype(np.float64), b + wrong)


@dataclass(frozen=True)
class GroupOutcomes:
    """Expected shares of groups, with 95 % intervals over prompts; mixed ones have a gradient."""

    all_wrong: Interval
    all_right: Interval
    mixed: Interval


def predict_group_outcomes(posterior: BetaPosterior, group_size: int) -> GroupOutcomes:
    """Expected shares of all-wrong, all-right and mixed groups of `group_size` new rollouts.

    E[(1 - p)^G] = Π_{j<G} (b + j)/(a + b + j) and E[p^G] likewise, for p ~ Beta(a, b).
    """
    wrong = _expected_power(posterior.b, posterior.a, group_size)
    right = _expected_power(posterior.a, posterior.b, group_size)
    return GroupOutcomes(*map(share_interval, (wrong, right, 1 - wrong - right)))


def _expected_power(a: Reals, b: Reals, k: int) -> Reals:
    """(P,) E[x^k] for x ~ Beta(a, b)."""
    steps = np.arange(k)
    product: Reals = np.prod((a[:, None] + steps) / ((a + b)[:, None] + steps), axis=1)
    return product


def draw_rates(posterior: BetaPosterior, size: int, generator: np.random.Generator) -> Reals:
    """(size,) pass rates that the problems of a whole training set may have.

    Prompts of the sample are drawn with replacement, and from the posterior of each a rate, so
    that repeated calls differ by all that a sample leaves open.
    """
    rows = generator.integers(posterior.a.size, size=size)
    rates: Reals = generator.beta(posterior.a[rows], posterior.b[rows])
    return rates


def count_by_solve_rate(right: Counts, rollouts: Counts) -> dict[str, int]:
    """Numbers of prompts by the share of their rollouts that were right; 0 and 1 by themselves."""
    rates = right / rollouts
    inner = (rates > 0) & (rates < 1)
    quarters = np.histogram(rates[inner], bins=[0, 0.25, 0.5, 0.75, 1])[0]
    names = ("up to 25 %", "25 to 50 %", "50 to 75 %", "75 % and more")
    return {
        "never": int((rates == 0).sum()),
        **dict(zip(names, map(int, quarters), strict=True)),
        "always": int((rates == 1).sum()),
    }

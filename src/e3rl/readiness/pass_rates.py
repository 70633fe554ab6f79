"""Pass rates estimated from a few rollouts of some prompts, and what groups they promise."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e3rl.budgets.posterior import BetaPosterior
from e3rl.statistics.interval import Interval
from e3rl.statistics.shares import ENOUGH, ROUNDING, wilson_interval

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]

# Priors that are tried: means, and strengths a₀ + b₀ from U-shaped to peaked at the mean.
MEANS = 1 / (1 + np.exp(-np.linspace(-6, 6, 49)))
STRENGTHS = np.geomspace(0.1, 100, 31)
RESAMPLES = 200  # samples of prompts that intervals are made from


def fit_prior(right: Counts, rollouts: Counts) -> tuple[float, float]:
    """The Beta(a₀, b₀) of the pass rates under which the counts are likeliest (empirical Bayes).

    Rollouts of prompt i are Binomial(nᵢ, pᵢ) with pᵢ ~ Beta(a₀, b₀), so the logarithm of their
    likelihood, up to what does not depend on the prior, is Σᵢ ln B(a₀ + cᵢ, b₀ + nᵢ - cᵢ) - ln
    B(a₀, b₀). Searched on a grid of `MEANS` and `STRENGTHS`.

    Args:
        right, rollouts: (P,) counts, right <= rollouts.
    """
    c, n, times = _count_kinds(right, rollouts)
    a, b = _fit_priors(c, n, times[:, None])
    return float(a[0]), float(b[0])


def _count_kinds(right: Counts, rollouts: Counts) -> tuple[Counts, Counts, Counts]:
    """(K,) right and all rollouts of the different kinds of prompts, and how many there are."""
    kinds, times = np.unique(np.stack([right, rollouts]), axis=1, return_counts=True)
    return kinds[0], kinds[1], times


def _fit_priors(c: Counts, n: Counts, times: Counts) -> tuple[Reals, Reals]:
    """(R,) a₀ and b₀ that are likeliest for each of R samples, made of `times` (K, R) prompts with
    c (K,) right of n (K,) rollouts."""
    mean, strength = (x.ravel() for x in np.meshgrid(MEANS, STRENGTHS))
    a, b = mean * strength, (1 - mean) * strength
    most = int(n.max())
    likelihood = (
        _log_rising_factorials(a, most)[:, c]
        + _log_rising_factorials(b, most)[:, n - c]
        - _log_rising_factorials(a + b, most)[:, n]
    )
    best = np.argmax(likelihood @ times, axis=0)
    return a[best], b[best]


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


def predict_group_outcomes(
    right: Counts, rollouts: Counts, group_size: int, seed: int = 0
) -> GroupOutcomes:
    """Shares of all-wrong, all-right and mixed groups of `group_size` new rollouts to expect.

    They are means over prompts, of what the posterior of `fit_posterior` expects. Posteriors lean
    on each other by their prior and so differ by less than pass rates do: how far the means may be
    off is seen from `RESAMPLES` samples of as many prompts, drawn with replacement together with
    their counts, each with a prior of its own. The intervals are Wilson's with that variance. Where
    fewer than `ENOUGH` prompts show a right rollout, or a wrong one, they are at least as wide as
    if each prompt were one trial.

    Args:
        right, rollouts: (P,) counts, right <= rollouts. seed: of the drawn samples.
    """
    c, n, times = _count_kinds(right, rollouts)
    prompts = int(times.sum())
    generator = np.random.default_rng(seed)
    drawn = generator.multinomial(prompts, times / prompts, size=RESAMPLES).T
    a, b = _fit_priors(c, n, np.column_stack([times, drawn]))
    expected = expect_outcomes(a + c[:, None], b + (n - c)[:, None], group_size)  # (3, K, 1 + R)
    shares = np.einsum("kr,skr->sr", np.column_stack([times, drawn]), expected) / prompts
    few = min((right > 0).sum(), (right < rollouts).sum()) < ENOUGH
    return GroupOutcomes(*(_share_interval(s[0], s[1:].std(ddof=1), prompts, few) for s in shares))


def expect_outcomes(a: Reals, b: Reals, group_size: int) -> Reals:
    """(3, ...) chances of an all-wrong, an all-right and a mixed group for p ~ Beta(a, b), (...).

    E[(1 - p)^G] = Π_{j<G} (b + j)/(a + b + j), and E[p^G] likewise.
    """
    wrong, right = np.ones_like(a), np.ones_like(a)
    for j in range(group_size):
        wrong *= (b + j) / (a + b + j)
        right *= (a + j) / (a + b + j)
    return np.stack([wrong, right, 1 - wrong - right])


def _share_interval(share: float, error: float, prompts: int, few: bool) -> Interval:
    """Wilson's interval of a share with a standard error over prompts."""
    mean = min(max(float(share), 0.0), 1.0)  # of rounding
    trials = mean * (1 - mean) / error**2 if error > ROUNDING else math.inf
    if (trials > prompts and few) or not 0 < trials < math.inf:
        return wilson_interval(mean, prompts)
    return wilson_interval(mean, trials, df=prompts - 1)


def draw_rates(right: Counts, rollouts: Counts, size: int, generator: np.random.Generator) -> Reals:
    """(size,) pass rates that the problems of a whole training set may have.

    Prompts of the sample are drawn with replacement, with their counts, as many as there are; then
    `size` of those, and from the posterior of each a rate. Repeated calls so differ by what a
    sample leaves open.

    Args:
        right, rollouts: (P,) counts, right <= rollouts.
    """
    seen = generator.integers(right.size, size=right.size)
    posterior = fit_posterior(right[seen], rollouts[seen])
    rows = generator.integers(right.size, size=size)
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

"""How noisy the gradient of a loss is, from pass rates and rollouts alone."""

from collections.abc import Callable
from math import lgamma
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]


class GradientMoments(NamedTuple):
    """Of the estimated gradient g = Σᵢ wᵢ Σⱼ Aᵢⱼ sᵢⱼ, with wᵢ the weight of a rollout of prompt i.

    Rollout j of prompt i is right with probability pᵢ, and its score (the gradient of its
    log-probability) is s = (r - pᵢ)·u + e: right and wrong completions differ by u, the same for
    all prompts, and e is noise, independent of the rewards, of mean 0 and variance 1 in every
    direction. For u small beside the noise, and completions of equal length,

        variance = Σᵢ wᵢ² E[Σⱼ Aᵢⱼ²]                 of g in any one direction,
        signal   = Σᵢ wᵢ E[Σⱼ Aᵢⱼ (rᵢⱼ - pᵢ)]        what E[g] holds of u.

    Where sizes of groups are fixed before the rewards are drawn, each loss has these expectations
    in pᵢ and nᵢ. A rule that decides in rounds lets nᵢ follow the rewards, which changes them: a
    group may end because it is mixed, or because it is not. They are then estimated, without bias,
    by the sums themselves over the rewards that were drawn: cᵢ right ones of nᵢ in each group.
    """

    variance: float
    signal: float


def rloo_by_prompt(rates: Reals, rollouts: Counts, right: Reals | None = None) -> GradientMoments:
    """Leave-one-out advantages, and every prompt weighs the same: wᵢ = 1/(P·nᵢ).

    A = n/(n - 1)·(r - r̄) has E[A²] = n/(n - 1)·pq and E[A·(r - p)] = pq, hence

        variance = 1/P² · Σ pq/(n - 1),   signal = 1/P · Σ pq,

    over prompts with n >= 2; the advantage of a single rollout is 0. The variance is that of VIP
    (arXiv 2602.01601). With c right rollouts Σⱼ A² = (n/(n - 1))²·c(n - c)/n and Σⱼ A·r =
    c(n - c)/(n - 1): the same with c(n - c)/(n(n - 1)) for pq.

    Args:
        rates: (P,) pass rates. rollouts: (P,) >= 1.
        right: (P,) right rollouts, where their numbers followed them; None for fixed numbers.
    """
    several = rollouts > 1
    p, n = rates[several], rollouts[several]
    spread = p * (1 - p)
    if right is not None:
        c = right[several]
        spread = c * (n - c) / (n * (n - 1))
    prompts = rollouts.size
    return GradientMoments(
        float((spread / (n - 1)).sum() / prompts**2), float(spread.sum() / prompts)
    )


def grpo(rates: Reals, rollouts: Counts, right: Reals | None = None) -> GradientMoments:
    """Advantages (r - r̄)/std, and every rollout weighs the same: wᵢ = 1/N, so a prompt weighs nᵢ.

    With the sample deviation, Σⱼ A² of a group is n - 1 if it is mixed, and 0 if not; with c right
    rollouts, Σⱼ A·r = c(n - c)/n / std = √(c(n - c)(n - 1)/n), and Σⱼ A·p = 0. Hence

        variance = 1/N² · Σ (n - 1)(1 - pⁿ - qⁿ),
        signal   = 1/N · Σ E[√(c(n - c)(n - 1)/n)],   c ~ Binomial(n, p).

    Args:
        rates: (P,) pass rates. rollouts: (P,) >= 1.
        right: (P,) right rollouts, where their numbers followed them; None for fixed numbers.
    """
    total = int(rollouts.sum())
    if right is not None:
        mixed = (right > 0) & (right < rollouts)
        c, n = right[mixed], rollouts[mixed]
        along = np.sqrt(c * (n - c) * (n - 1) / n).sum()
        return GradientMoments(float((n - 1).sum() / total**2), float(along / total))
    varied = (rates > 0) & (rates < 1) & (rollouts > 1)
    p, n = rates[varied], rollouts[varied]
    chance = 1 - p**n - (1 - p) ** n
    signal = sum(float(_spread(int(size), p[n == size]).sum()) for size in np.unique(n))
    return GradientMoments(float(((n - 1) * chance).sum() / total**2), signal / total)


def _spread(n: int, p: Reals) -> Reals:
    """(m,) E[√(c(n - c)(n - 1)/n)] for c ~ Binomial(n, p), 0 < p < 1."""
    c = np.arange(1, n)
    ways = np.array([lgamma(n + 1) - lgamma(x + 1) - lgamma(n - x + 1) for x in c.tolist()])
    chances = np.exp(ways + np.outer(np.log(p), c) + np.outer(np.log1p(-p), n - c))  # (m, n - 1)
    expected: Reals = chances @ np.sqrt(c * (n - c) * (n - 1) / n)
    return expected


# By the names of conf/loss.
LOSSES: dict[str, Callable[[Reals, Counts, Reals | None], GradientMoments]] = {
    "grpo": grpo,
    "rloo_by_prompt": rloo_by_prompt,
}


def relative_variance(
    loss: str, rates: Reals, rollouts: Counts, even: int, right: Reals | None = None
) -> float:
    """The variance beside that of groups of `even` for each of the same prompts; NaN if that is 0.

    It belongs to one loss and one set of prompts, and says nothing of the signal. Where advantages
    are normalised it also rises when fewer groups have equal rewards, since such groups add no
    noise, and no signal; under a rule that decides in rounds both may fall together.
    """
    moments = LOSSES[loss]
    reference = moments(rates, np.full_like(rollouts, even), None).variance
    return moments(rates, rollouts, right).variance / reference if reference > 0 else float("nan")


def gradient_noise_scale(
    loss: str, rates: Reals, rollouts: Counts, right: Reals | None = None
) -> float:
    """N·variance/signal²: how many rollouts, split like these, make noise and signal equal.

    The gradient noise scale of McCandlish et al. (arXiv 1812.06162) along u, in rollouts.

    Free of the scale of advantages and weights, so that losses, budgets and sets of prompts can be
    compared; its unit is 1/u². Half the noise scale does as much as twice the rollouts. NaN without
    a signal.

    Args:
        loss: a name in `LOSSES`. rates: (P,) pass rates. rollouts: (P,) >= 1.
        right: (P,) right rollouts, where their numbers followed them; None for fixed numbers.
    """
    variance, signal = LOSSES[loss](rates, rollouts, right)
    return float(rollouts.sum()) * variance / signal**2 if signal > 0 else float("nan")

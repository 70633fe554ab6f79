"""maj@k: how often the answer that most of k samples give is right."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


def majority_at_k(right: int, others: Sequence[int], n: int, k: int) -> float:
    """Probability that a vote of k of a problem's n samples ends with the right answer.

        maj@k = E over subsets S of k samples [ 1{right answer is among the most frequent} / ties ]

    where `ties` is the number of answers that are most frequent together: a tie is drawn by lot.
    Samples without an answer do not vote, and a vote of nobody is wrong, so maj@1 = pass@1. Drawn
    without replacement, this is unbiased for the vote of k fresh samples.

    The value is exact, not simulated. With p = k/n, numbers of votes are independent binomials
    b(m, s) = C(m, s) pˢ(1-p)ᵐ⁻ˢ given that they add up to k, and ∫₀¹ yʲ dy = 1/(j+1) shares a tie:

        maj@k = Σ_t b(right, t) ∫₀¹ [xᵏ⁻ᵗ] (Σ_s b(silent, s) xˢ)
                ∏ⱼ (Σ_{s<t} b(otherⱼ, s) xˢ + y·b(otherⱼ, t) xᵗ) dy / b(n, k)

    The integrand is a polynomial in y, for which Gauss-Legendre quadrature is exact.

    Args:
        right: samples that give the right answer.
        others: samples by wrong answer, one count each.
        n: all samples, those without an answer included.
        k: votes, 1 <= k <= n.

    Raises:
        ValueError: k outside 1..n, or counts that are negative or add up to more than n.
    """
    silent = n - right - sum(others)
    if not 1 <= k <= n:
        raise ValueError(f"maj@{k} needs 1 <= k <= {n} samples; sample more or lower k")
    if min(right, silent, *others) < 0:
        raise ValueError(f"right={right}, others={list(others)} must be >= 0 and at most n={n}")
    if right == 0:
        return 0.0
    sizes = Counter(size for size in others if size)
    if k == n:
        return 0.0 if max(sizes, default=0) > right else 1 / (1 + sizes[right])
    wins = _binomial(right, k / n, k)
    quiet = _binomial(silent, k / n, k)
    chances = [wins[t] * _unbeaten(sizes, quiet, k / n, t, k - t) for t in range(1, len(wins))]
    return min(1.0, math.fsum(chances) / float(_binomial(n, k / n, k)[k]))


def votes(classes: Sequence[Hashable | None], right: Sequence[bool]) -> tuple[int, list[int]]:
    """How many of a problem's samples give the right answer, and how many each wrong one.

    Args:
        classes: of each sample's answer, None where it has none; see `rewards.equivalence`.
        right: whether the answer is; alike for all samples of a class.

    Raises ValueError where a class holds right and wrong answers, or sizes differ.
    """
    counts: Mapping[tuple[Hashable, bool], int] = Counter(
        (each, bool(good)) for each, good in zip(classes, right, strict=True) if each is not None
    )
    if len({each for each, _ in counts}) < len(counts):
        raise ValueError("some class of equal answers holds right and wrong ones")
    return (
        sum(size for (_, good), size in counts.items() if good),
        [size for (_, good), size in counts.items() if not good],
    )


def _unbeaten(sizes: Mapping[int, int], quiet: Reals, p: float, t: int, rest: int) -> float:
    """Σ over the other `rest` votes, none of the wrong answers above t, of 1/(1 + those at t)."""
    tying = min(sum(count for size, count in sizes.items() if size >= t), rest // t)
    places, weights = np.polynomial.legendre.leggauss(tying // 2 + 1)
    total = 0.0
    for y, weight in zip((places + 1) / 2, weights / 2, strict=True):
        product = quiet[: rest + 1]
        for size, count in sizes.items():
            factor = _binomial(size, p, min(t, rest))
            if t < len(factor):
                factor[t] *= y
            product = _product(product, _power(factor, count, rest), rest)
        total += float(weight * product[rest]) if rest < len(product) else 0.0
    return total


def _power(factor: Reals, exponent: int, degree: int) -> Reals:
    """A polynomial to a power, up to a degree; by repeated squaring."""
    result: Reals = np.ones(1)
    while exponent:
        if exponent % 2:
            result = _product(result, factor, degree)
        factor, exponent = _product(factor, factor, degree), exponent // 2
    return result


def _product(a: Reals, b: Reals, degree: int) -> Reals:
    return np.asarray(np.convolve(a, b)[: degree + 1], dtype=np.float64)


def _binomial(m: int, p: float, most: int) -> Reals:
    """b(m, s) for s = 0 .. min(m, most), at 0 < p < 1."""
    s = np.arange(min(m, most) + 1)
    choose = [math.lgamma(m + 1) - math.lgamma(j + 1) - math.lgamma(m - j + 1) for j in s]
    return np.asarray(np.exp(choose + s * math.log(p) + (m - s) * math.log1p(-p)))

"""pass@k and mean@n from n samples of which c are right, max@k of rewards between."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> NDArray[np.float64]:
    """Probability that at least one of k samples is right, without bias, per problem.

        pass@k = 1 - C(n-c, k)/C(n, k) = 1 - ∏_{j<k} (n-c-j)/(n-j)

    (Chen et al., arXiv 2107.03374, eq. 1), unbiased for 1 - (1-p)ᵏ when n is fixed beforehand.

    Args:
        n: (P,) samples per problem, may differ between problems.
        c: (P,) right ones among them, 0 <= c <= n.
        k: samples that one may try, 1 <= k <= min n.

    Returns:
        (P,) float64 in [0, 1].

    Raises:
        ValueError: k outside 1..min n, or c outside 0..n.
    """
    samples, right = _counts(n, c)
    if k < 1:
        raise ValueError(f"pass@{k}: k must be at least 1")
    if (samples < k).any():
        raise ValueError(
            f"pass@{k} needs at least {k} samples of every problem, but {int((samples < k).sum())}"
            f" of {samples.size} have fewer (minimum {samples.min()}); sample more or lower k"
        )
    all_wrong = np.ones(samples.shape)
    for j in range(k):
        all_wrong *= np.maximum(samples - right - j, 0) / (samples - j)
    return 1.0 - all_wrong


def max_at_k(rewards: ArrayLike, k: int) -> float:
    """The largest reward that k of n samples are expected to hold, without bias.

        max@k = Σ_j C(j-1, k-1)/C(n, k) r_(j),   r_(1) ≤ ... ≤ r_(n)

    (arXiv 2510.23393), which for rewards of 0 and 1 is pass@k.

    Args:
        rewards: (n,) of one problem.
        k: samples that one may try, 1 <= k <= n.

    Raises ValueError for k outside 1..n.
    """
    values = np.sort(np.asarray(rewards, np.float64))
    return float(max_at_k_weights(values.size, k) @ values)


def max_at_k_weights(n: int, k: int) -> NDArray[np.float64]:
    """(n,) share of the k-subsets of n whose largest member is the j-th smallest.

    Raises ValueError for k outside 1..n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"max@{k} of {n} samples: k must lie in 1..{n}")
    # C(j-1, k-1)/C(j, k-1) = (j-k+1)/j leads from each weight to the one before; the last is k/n.
    j = np.arange(1, n)
    steps = np.append((j - k + 1).clip(min=0) / j, k / n)
    return steps[::-1].cumprod()[::-1]


def mean_at_n(n: ArrayLike, c: ArrayLike) -> NDArray[np.float64]:
    """Share of right samples c/n per problem, equal to pass@1: (P,), (P,) -> (P,) float64."""
    samples, right = _counts(n, c)
    if (samples < 1).any():
        raise ValueError("mean@n needs at least one sample of every problem")
    return right / samples


def _counts(n: ArrayLike, c: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    samples, right = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(c, np.float64))
    wrong = (right < 0) | (right > samples)
    if wrong.any():
        raise ValueError(
            f"the number of right samples must lie in 0..n, got c={right[wrong][:4].tolist()} "
            f"for n={samples[wrong][:4].tolist()}"
        )
    return samples, right

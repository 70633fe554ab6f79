"""Difficulty ranks of prompts from their mean rewards."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def mid_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Difficulty ranks k in [0, 1) of mean rewards: 0 = easiest, larger = harder.

        kᵢ = (#{j : vⱼ > vᵢ} + (#{j : vⱼ = vᵢ} - 1)/2) / S

    This is the position in the order of descending reward, averaged over ties, over the number S
    of *seen* prompts (arXiv 2505.18573, which leaves ties and unseen prompts open). NaN marks a
    prompt that was never seen: it takes no part in the ranking and stays NaN.

    Permuting the values permutes the ranks; the dataset's order cannot make a prompt harder.

    Args:
        values: (B,) mean reward per prompt, NaN = never seen.

    Returns:
        (B,) ranks, NaN where `values` is.
    """
    rewards = np.asarray(values, dtype=np.float64)
    if rewards.ndim != 1:
        raise ValueError(f"mid_ranks takes one mean reward per prompt (B,), got {rewards.shape}")
    seen = ~np.isnan(rewards)
    ranks = np.full(rewards.shape, np.nan)
    if seen.any():
        # Ascending order of the negated reward is descending order of the reward.
        _, level, size = np.unique(-rewards[seen], return_inverse=True, return_counts=True)
        better = np.cumsum(size) - size
        ranks[seen] = (better + (size - 1) / 2)[level] / seen.sum()
    return ranks

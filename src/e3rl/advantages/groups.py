"""The decisions that all estimators share: what is allowed, what is equal, what is centred."""

import torch
from torch import Tensor

from e3rl.functional.ragged import group_means

# Rewards closer than this are equal: twelve times 0.7 in float32 has a mean that is not 0.7, and
# dividing by its standard deviation would turn rounding noise into advantages of 0.1.
EQUAL_REWARDS = 1e-6


def constant_groups(rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """True where a group's max - min <= 1e-6, groups of one and none included: (n_groups,) bool.

    Such a group carries no signal: its advantages are exactly 0 and its rollouts may be skipped.
    """
    highest = rewards.new_full((n_groups,), -torch.inf)
    highest = highest.scatter_reduce(0, group, rewards, "amax")
    lowest = rewards.new_full((n_groups,), torch.inf).scatter_reduce(0, group, rewards, "amin")
    return highest - lowest <= EQUAL_REWARDS


def check_rewards(rewards: Tensor, group: Tensor, n_groups: int) -> None:
    """Raise ValueError unless rewards and prompt rows are what an estimator can work with.

    That is: shapes that agree, finite rewards, rows in [0, n_groups).
    """
    if rewards.ndim != 1 or rewards.shape != group.shape:
        raise ValueError(
            f"rewards {tuple(rewards.shape)} and group {tuple(group.shape)} must both be (N,)"
        )
    if not bool(torch.isfinite(rewards).all()):
        raise ValueError("rewards must be finite; a NaN here would reach every weight")
    if group.numel() and not 0 <= int(group.min()) <= int(group.max()) < n_groups:
        raise ValueError(
            f"group rows must lie in [0, {n_groups}), got {int(group.min())} to {int(group.max())}"
        )


def centred_rewards(rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Reward minus its group's mean, exactly 0 in constant groups: (N,) float64.

    In float64, so that the order of the rollouts does not show in a float32 advantage.

    Raises ValueError like `check_rewards`.
    """
    check_rewards(rewards, group, n_groups)
    exact = rewards.double()
    centred = exact - group_means(exact, group, n_groups)[group]
    return centred.masked_fill(constant_groups(exact, group, n_groups)[group], 0.0)

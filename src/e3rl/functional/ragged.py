"""Sums over ragged groups: of rollouts by prompt, of tokens by rollout."""

import torch
from torch import Tensor


def group_counts(group: Tensor, n_groups: int) -> Tensor:
    """Members per group: (N,) int64 -> (n_groups,) int64."""
    return torch.bincount(group, minlength=n_groups)


def group_sums(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Sum per group, 0 for an empty one: (N,), (N,) -> (n_groups,), differentiable."""
    return values.new_zeros(n_groups).index_add(0, group, values)


def group_means(values: Tensor, group: Tensor, n_groups: int) -> Tensor:
    """Mean per group, 0 for an empty one: (N,), (N,) -> (n_groups,), differentiable."""
    return group_sums(values, group, n_groups) / group_counts(group, n_groups).clamp(min=1)

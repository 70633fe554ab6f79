"""Cutting a minibatch into micro-batches that fit a token budget."""

import torch
from torch import Tensor


def microbatches(lengths: Tensor, rows: Tensor, tokens_per_microbatch: int) -> list[Tensor]:
    """Rows grouped by length so that rows x longest <= the budget, padding included.

    Args:
        lengths: (N,) int64 tokens per rollout.
        rows: (m,) int64 rollouts to place.
        tokens_per_microbatch: padded tokens of one forward pass; a single longer rollout still
            gets a micro-batch of its own.

    Returns:
        Disjoint (m_i,) row tensors that cover `rows`, longest rollouts first.
    """
    ordered = rows[torch.argsort(lengths[rows], descending=True, stable=True)]
    packs, start = [], 0
    while start < len(ordered):
        longest = int(lengths[ordered[start]])
        size = max(1, tokens_per_microbatch // longest)
        packs.append(ordered[start : start + size])
        start += size
    return packs

"""Choosing tokens out of a whole batch, the same ones however ranks and micro-batches cut it."""

import numpy as np
import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.process.distributed import all_gather
from e3rl.seeds import derive_seed


def token_draws(batch: RolloutBatch) -> Tensor:
    """(M,) float64 uniform numbers for the sampled tokens, row by row.

    They derive from prompt and sample, so that a rollout has the same ones on any rank.
    """
    group, sample = batch.tensor("group").tolist(), batch.tensor("sample").tolist()
    lengths = batch.tensor("completion_mask").sum(dim=1).tolist()
    draws = []
    for row, length in enumerate(lengths):
        seed = derive_seed(*batch.stream, "tokens", batch.prompt_ids[group[row]], sample[row])
        generator = torch.Generator().manual_seed(seed)
        draws.append(torch.rand(length, generator=generator, dtype=torch.float64))
    return torch.cat(draws) if draws else torch.zeros(0, dtype=torch.float64)


def select_top(values: Tensor, draws: Tensor, eligible: Tensor, count: int) -> Tensor:
    """Mark the `count` largest eligible values over all ranks, or all where there are fewer.

    Equal values are ordered by draw: many tokens have log-prob 0 exactly, and no more than
    `count` of them may be marked.

    Args:
        values: (M,) of this rank.
        draws: (M,) uniform numbers, see `token_draws`.
        eligible: (M,) bool.
        count: over all ranks; every rank must call with the same.

    Returns:
        (M,) bool on the device of `values`.
    """
    keys = torch.stack([values.double().cpu(), draws.cpu()])[:, eligible.cpu()].numpy()  # (2, E)
    every = np.concatenate(all_gather(_largest(keys, count)), axis=1)
    marked = torch.zeros_like(eligible)
    if count < 1 or every.shape[1] == 0:
        return marked
    value, draw = _largest(every, count)[:, -1]
    chosen = (keys[0] > value) | ((keys[0] == value) & (keys[1] >= draw))
    marked[eligible] = torch.from_numpy(chosen).to(marked.device)
    return marked


def _largest(keys: np.ndarray, count: int) -> np.ndarray:
    """The columns (value, draw) of a (2, E) array that are largest, in falling order."""
    return keys[:, np.lexsort((keys[1], keys[0]))[::-1][:count]]

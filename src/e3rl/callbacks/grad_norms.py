"""What a batch shows of its prompts' gradients, where the module has measured them."""

import numpy as np
import torch
from numpy.typing import NDArray

from e3rl.batch import RolloutBatch
from e3rl.budgets.base import NORMS


def norm_moments(batch: RolloutBatch) -> dict[str, NDArray[np.float64]]:
    """`NORMS` of this rank's prompts: (P,) means of g and g² over right and over wrong rollouts.

    NaN for prompts without such rollouts, and where nothing was measured.
    """
    if batch.grad_norms is None:
        return {name: np.full(batch.n_prompts, np.nan) for name in NORMS}
    norms, group = batch.grad_norms.double().cpu(), batch.tensor("group").cpu()
    right = batch.tensor("correct").double().cpu()
    means: list[torch.Tensor] = []
    for weight in (right, 1 - right):
        sums = torch.zeros(3, batch.n_prompts, dtype=torch.float64)
        values = torch.stack([weight, weight * norms, weight * norms.square()])
        sums.index_add_(1, group, values)
        means += [sums[1] / sums[0], sums[2] / sums[0]]  # 0 / 0 is NaN
    return {name: mean.numpy() for name, mean in zip(NORMS, means, strict=True)}

"""Advantages that train for pass@k, the chance that one of k rollouts is right."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e3rl.advantages.groups import check_rewards
from e3rl.functional.ragged import group_counts, group_sums
from e3rl.statistics.pass_at_k import pass_at_k


class PassAtKAdvantage:
    """Advantages of the k-subsets of a group, averaged over the subsets a rollout is in.

    A subset of k rollouts earns 1 if any of them is right. Of n rollouts with c right ones

        R = 1 - C(n-c, k)/C(n, k),   s = √(R(1-R)),
        A_right = (1 - R)/s,   A_wrong = (1 - C(n-c-1, k-1)/C(n-1, k-1) - R)/s

    (arXiv 2508.10751, the analytical form.) They sum to 0 over a group and are 0 where every
    subset earns the same: without a right rollout, and already with n - c < k wrong ones, so a
    prompt that is mostly solved stops teaching. For that reason k may fall to `final_k` over the
    run; k = 1 is GRPO with the population deviation.

    A group of n rollouts uses min(k, n-1): with k = n there is one subset and nothing to compare.
    A rollout counts as right where its reward is above 0.

    Args:
        k: at the start, at least 1.
        final_k: at the last step, reached linearly and rounded; None = k throughout.
    """

    def __init__(self, k: int = 4, final_k: int | None = None) -> None:
        for name, value in (("k", k), ("final_k", final_k)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} must be at least 1 (1 is GRPO)")
        self.k = k
        self.final_k = k if final_k is None else final_k
        self._now = k

    def begin(self, step: int, total_steps: int) -> None:
        """Set k for a 0-based rollout step of a run of `total_steps`."""
        progress = min(1.0, step / max(1, total_steps - 1))
        self._now = round(self.k + (self.final_k - self.k) * progress)

    def metrics(self) -> dict[str, float]:
        return {"k": float(self._now)}

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32."""
        check_rewards(rewards, group, n_groups)
        right = rewards > 0
        counts = group_counts(group, n_groups).cpu().numpy()
        solved = group_sums(right.double(), group, n_groups).cpu().numpy()
        table = np.zeros((n_groups, 2))  # of wrong and right rollouts
        own_k = np.minimum(self._now, counts - 1)  # none for groups of one
        for k in np.unique(own_k[own_k >= 1]):
            rows = own_k == k
            table[rows] = _advantages(counts[rows], solved[rows], int(k))
        return torch.from_numpy(table).to(group.device)[group, right.long()].float()


def _advantages(n: NDArray[np.int64], c: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(G, 2) advantages of wrong and right rollouts, 0 where all subsets earn the same."""
    mean = pass_at_k(n, c, k)
    spread = np.sqrt(mean * (1 - mean))
    # Of the subsets that hold a given wrong rollout: those whose other k - 1 hold a right one.
    with_wrong = pass_at_k(n - 1, np.minimum(c, n - 1), k - 1) if k > 1 else np.zeros_like(mean)
    values = np.stack([with_wrong - mean, 1 - mean], axis=1)
    safe = np.where(spread > 0, spread, 1.0)[:, None]
    return np.where(spread[:, None] > 0, values / safe, 0.0)

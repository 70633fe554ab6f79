"""Advantages that train for pass@k, the chance that one of k rollouts is right."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from e3rl.advantages.groups import EQUAL_REWARDS, check_rewards
from e3rl.statistics.pass_at_k import max_at_k_weights


class PassAtKAdvantage:
    """Advantages of the k-subsets of a group, averaged over the subsets a rollout is in.

    A subset of k rollouts earns its largest reward: 1 if any of them is right, and max@k of
    rewards between (arXiv 2510.23393). With mean R and standard deviation s over the subsets,

        A_i = (mean over the subsets that hold i - R)/s,

    of n rollouts with c right ones R = 1 - C(n-c, k)/C(n, k), s = √(R(1-R)),

        A_right = (1 - R)/s,   A_wrong = (1 - C(n-c-1, k-1)/C(n-1, k-1) - R)/s

    (arXiv 2508.10751, the analytical form.) They sum to 0 over a group and are 0 where every
    subset earns the same: without a right rollout, and already with n - c < k wrong ones, so a
    prompt that is mostly solved stops teaching. For that reason k may fall to `final_k` over the
    run; k = 1 is GRPO with the population deviation.

    A group of n rollouts uses min(k, n-1): with k = n there is one subset and nothing to compare.

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
        values, rows = rewards.double().cpu().numpy(), group.cpu().numpy()
        advantages = np.zeros(values.shape)
        for each in range(n_groups):
            own = np.flatnonzero(rows == each)
            if own.size > 1:
                advantages[own] = _advantages(values[own], min(self._now, own.size - 1))
        return torch.from_numpy(advantages).to(group.device).float()


def _advantages(rewards: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """(n,) advantages of one group, 0 where all k-subsets earn the same; k < n."""
    n = rewards.size
    order = np.argsort(rewards, kind="stable")
    r = rewards[order]
    if r[-1] - r[k - 1] <= EQUAL_REWARDS:
        return np.zeros(n)
    weights = max_at_k_weights(n, k)
    mean = weights @ r
    spread = np.sqrt(weights @ (r - mean) ** 2)
    # Of the subsets that hold the i-th smallest: it is their largest, or another one above it is,
    # beside k - 2 more. The shares follow from those of n - 1, from which i is missing.
    others = max_at_k_weights(n - 1, k - 1) if k > 1 else np.zeros(n - 1)
    above = np.append((others * r[1:])[::-1].cumsum()[::-1], 0.0)  # by others that exceed i
    largest = np.append(1 - others[::-1].cumsum()[::-1], 1.0)  # i is the largest
    advantages = np.empty(n)
    advantages[order] = (largest * r + above - mean) / spread
    return advantages

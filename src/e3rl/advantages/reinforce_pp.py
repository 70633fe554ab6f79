"""Batch-normalised advantages of REINFORCE++."""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from e3rl.advantages.groups import EQUAL_REWARDS, centred_rewards, check_rewards
from e3rl.process.distributed import all_sum

Baseline = Literal["batch", "group"]


class BatchNormalized:
    """A = (x - mean x) / std x over all rollouts of the step on all ranks (arXiv 2501.03262).

    With baseline "batch" x is the reward: a prompt that is always solved gets a positive
    advantage where others fail, so nothing is skipped, and the estimate's variance holds the
    spread of difficulty between prompts. With "group" x is the reward minus its group's mean (the
    paper's variant with a baseline for several rollouts per prompt): constant groups stay exactly
    0, and unlike GRPO's one deviation per group, one for the batch keeps hard prompts from being
    scaled up.

    Each rollout counts once; the published code weighs it by its tokens.

    Args:
        baseline: what is subtracted before normalising, "batch" (nothing) or "group".
    """

    def __init__(self, baseline: Baseline = "batch") -> None:
        if baseline not in get_args(Baseline):
            raise ValueError(f"baseline={baseline!r}: choose one of {get_args(Baseline)}")
        self.baseline = baseline

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32."""
        check_rewards(rewards, group, n_groups)
        grouped = self.baseline == "group"
        values = centred_rewards(rewards, group, n_groups) if grouped else rewards.double()
        count, total = all_sum([values.numel(), float(values.sum())])
        # Centred values have the mean 0; only rounding would turn an exact 0 into something else.
        centred = values if grouped else values - total / max(1.0, count)
        (squares,) = all_sum([float(centred.square().sum())])
        spread = math.sqrt(squares / max(1.0, count))
        if spread <= EQUAL_REWARDS:
            return torch.zeros_like(rewards)
        return (centred / spread).to(rewards.dtype)

"""Slot `advantage`: rewards become advantages."""

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from e3rl.advantages.base import AdvantageEstimator, Scheduled
from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import Slot, rollout_step, total_steps
from e3rl.process.distributed import all_sum


class Advantage(Slot):
    """Applies an estimator to the finished rollouts.

    Args:
        estimator: (rewards (N,), group (N,), P) -> (N,), from `advantages/`.
    """

    slot = "advantage"
    reads = ("rewards", "group")
    writes = ("advantages",)

    def __init__(self, estimator: AdvantageEstimator) -> None:
        self.estimator = estimator

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        scheduled = self.estimator if isinstance(self.estimator, Scheduled) else None
        if scheduled is not None:
            scheduled.begin(rollout_step(trainer), total_steps(trainer))
            batch.metrics |= {f"advantage/{name}": x for name, x in scheduled.metrics().items()}
        group = batch.tensor("group")
        batch.advantages = self._estimate(batch)
        if batch.prompt_weights is not None:
            batch.advantages = batch.advantages * batch.prompt_weights.to(group.device)[group]
        counts = [len(torch.unique(group[batch.advantages != 0])), len(torch.unique(group))]
        teaching, sampled = all_sum(counts)
        batch.metrics["advantage/silent"] = 1 - teaching / max(1.0, sampled)  # share of prompts

    def _estimate(self, batch: RolloutBatch) -> Tensor:
        """(N,); a rollout of weight 0 is in no group's baseline and has advantage 0."""
        rewards, group, weights = batch.tensor("rewards"), batch.tensor("group"), batch.weights
        if weights is None or not bool((weights != 1).any()):
            return self.estimator(rewards, group, batch.n_prompts)
        counts = weights > 0
        found = self.estimator(rewards[counts], group[counts], batch.n_prompts)
        advantages = found.new_zeros(len(rewards))
        advantages[counts] = found * weights[counts]
        return advantages

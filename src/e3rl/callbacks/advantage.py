"""Slot `advantage`: rewards become group-relative advantages."""

from lightning import LightningModule, Trainer

from e3rl.advantages.base import AdvantageEstimator
from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import Slot


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
        rewards, group = batch.tensor("rewards"), batch.tensor("group")
        batch.advantages = self.estimator(rewards, group, batch.n_prompts)

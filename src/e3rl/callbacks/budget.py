"""Slot `budget`: how many rollouts each prompt of the step gets."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule, Trainer

from e3rl.batch import RolloutBatch
from e3rl.budgets.base import Budget, SingleRound
from e3rl.callbacks.slot import Slot, undecided
from e3rl.reduce import all_gather, rank


class RolloutBudget(Slot):
    """Decides over the prompts of all ranks, learns from the rewards of all ranks.

    Args:
        strategy: the allocation rule (`budgets/`).
        rollouts_per_prompt: mean group size G; a step spends G times its prompts.
    """

    slot = "budget"
    writes = ("plan", "ranks")

    def __init__(self, strategy: Budget, rollouts_per_prompt: int) -> None:
        if rollouts_per_prompt < 1:
            raise ValueError(f"rollouts_per_prompt={rollouts_per_prompt}: use at least 1")
        self.strategy = strategy
        self.rollouts_per_prompt = rollouts_per_prompt

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        for each, step in undecided(trainer, batch):
            # The epoch is an argument, never a hook: a resumed run may skip epoch-start hooks.
            self._decide(each, step, int(step // trainer.num_training_batches))

    def _decide(self, batch: RolloutBatch, step: int, epoch: int) -> None:
        shards = all_gather(batch.prompt_ids)
        ids = [prompt_id for shard in shards for prompt_id in shard]
        total = self.rollouts_per_prompt * len(ids)
        allocation = self.strategy.decide(ids, total, step, epoch)
        start = sum(len(shard) for shard in shards[: rank()])
        own = slice(start, start + batch.n_prompts)
        batch.ranks = torch.from_numpy(allocation.ranks[own].copy())
        batch.plan = allocation.plan
        batch.report |= {f"budget/{name}": x for name, x in self.strategy.metrics().items()}
        if len(shards) > 1:
            if not isinstance(allocation.plan, SingleRound):
                raise ValueError(
                    f"{type(allocation.plan).__name__} decides round by round over all prompts, "
                    f"which {len(shards)} ranks cannot share: use trainer.devices=1 or a budget "
                    "with all counts known beforehand"
                )
            batch.plan = SingleRound(allocation.plan.counts[own])

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        correct, group = batch.tensor("correct").double().cpu(), batch.tensor("group").cpu()
        rewards = [correct[group == row].numpy() for row in range(batch.n_prompts)]
        for ids, arrays in all_gather((batch.prompt_ids, rewards)):
            self.strategy.observe(ids, arrays)

    def state_dict(self) -> dict[str, Any]:
        return self.strategy.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.strategy.load_state_dict(state_dict)

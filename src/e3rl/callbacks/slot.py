"""`Slot`: the skeleton that every callback of the stack shares.

A slot says which fields of the batch it reads and writes, in training and in validation. Slots
meet on the batch alone; at start each one checks that what it reads has its producers earlier in
the list, so that a wrong order or a missing callback is an error that names both.
"""

import math
import sys
from typing import ClassVar

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from e3rl.batch import WRITERS, RolloutBatch


class Slot(Callback):
    """A place in the pipeline; see `conf/callbacks/default.yaml` for the order."""

    slot: ClassVar[str]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    validation_reads: tuple[str, ...] = ()
    validation_writes: tuple[str, ...] = ()

    @property
    def state_key(self) -> str:
        return f"e3rl/{self.slot}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        stack = [c for c in trainer.callbacks if isinstance(c, Slot)]  # type: ignore[attr-defined]
        # The baseline is validated before training: what training lacks must show before it.
        if stage == TrainerFn.FITTING or any(trains_only(other) for other in stack):
            check_order(self, stack)
        if stage != TrainerFn.FITTING or trainer.enable_validation:
            check_order(self, stack, validation=True)


def trains_only(slot: Slot) -> bool:
    """Whether a slot has no part in validation, so that its stack is one for training."""
    validates = slot.validation_reads or slot.validation_writes
    return bool(slot.reads or slot.writes) and not validates


def check_stack(stack: list[Slot]) -> None:
    """Raise ValueError where a slot reads what none before it writes, in training or validation."""
    for slot in stack:
        check_order(slot, stack)
        check_order(slot, stack, validation=True)


def check_order(slot: Slot, stack: list[Slot], validation: bool = False) -> None:
    """Raise ValueError where a field that `slot` reads is not written by earlier slots alone."""
    position = next(i for i, other in enumerate(stack) if other is slot)
    for field in slot.validation_reads if validation else slot.reads:
        writers = [i for i, other in enumerate(stack) if field in _written(other, validation)]
        late = [i for i in writers if i > position]
        if not late and any(i < position for i in writers):
            continue
        if late:
            producer, place = stack[late[0]].slot, "stands after it"
        else:
            producer = "pass_at_k" if validation and field == "allocation" else WRITERS[field]
            place = "is not in the stack"
        raise ValueError(
            f"callback `{slot.slot}` reads batch.{field}, but its producer `{producer}` {place}: "
            "put them in the order of conf/callbacks/default.yaml"
        )


def _written(slot: Slot, validation: bool) -> tuple[str, ...]:
    return slot.validation_writes if validation else slot.writes


def rollout_step(trainer: Trainer) -> int:
    """0-based index of the current training batch over the whole run (also right after resume);
    -1 before the first.

    `trainer.global_step` counts optimiser steps, which are more or fewer than batches.
    """
    return int(trainer.fit_loop.total_batch_idx)


def total_steps(trainer: Trainer) -> int:
    """Rollout steps of the whole run; of a trainer that has no training batches yet, no end."""
    steps = (trainer.max_epochs or 0) * trainer.num_training_batches
    return int(steps) if math.isfinite(steps) else sys.maxsize


def batches_to_decide(trainer: Trainer, batch: RolloutBatch) -> list[tuple[RolloutBatch, int]]:
    """Batches that are sampled from the current step on, each with its own rollout step.

    That is the batch itself, unless it was sampled steps ahead, and with look-ahead the upcoming
    ones, unless the run ends before them.
    """
    step = rollout_step(trainer)
    found = [(batch, step)] if batch.group is None else []
    for later, each in batch.upcoming.items():
        if step + later < total_steps(trainer):
            found.append((each, step + later))
    return found

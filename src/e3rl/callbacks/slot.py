"""`Slot`: the skeleton that every callback of the stack shares.

A slot says which fields of the batch it reads and writes. Slots meet on the batch alone; at start
each one checks that what it reads has a producer earlier in the list, so that a wrong order or a
missing callback is an error that names both.
"""

from typing import ClassVar

from lightning import Callback, LightningModule, Trainer

from e3rl.batch import WRITERS


class Slot(Callback):
    """A place in the pipeline; see `conf/callbacks/default.yaml` for the order."""

    slot: ClassVar[str]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()

    @property
    def state_key(self) -> str:
        return f"e3rl/{self.slot}"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        check_order(self, [c for c in trainer.callbacks if isinstance(c, Slot)])  # type: ignore[attr-defined]


def check_order(slot: Slot, stack: list[Slot]) -> None:
    """Raise ValueError where a field that `slot` reads is not written by an earlier slot."""
    earlier = stack[: next(i for i, other in enumerate(stack) if other is slot)]
    for field in slot.reads:
        if any(field in other.writes for other in earlier):
            continue
        late = [other.slot for other in stack if field in other.writes and other is not slot]
        producer = late[0] if late else WRITERS[field]
        place = "stands after it" if late else "is not in the stack"
        raise ValueError(
            f"callback `{slot.slot}` reads batch.{field}, but its producer `{producer}` {place}: "
            "put them in the order of conf/callbacks/default.yaml"
        )


def rollout_step(trainer: Trainer) -> int:
    """0-based index of the current training batch over the whole run (also right after resume).

    `trainer.global_step` counts optimiser steps, which are more or fewer than batches.
    """
    return int(trainer.fit_loop.total_batch_idx)


def is_rank_zero(trainer: Trainer) -> bool:
    return bool(trainer.is_global_zero)

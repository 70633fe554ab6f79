"""Slot `checkpoint`: everything a run needs to go on, every few rollout steps."""

import random
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.loops.evaluation_loop import RestartStage
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.trainer.states import TrainerFn

from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import rollout_step, total_steps
from e3rl.callbacks.stopping import Stopped, StopRequest
from e3rl.checkpoints.durable import sync_folder
from e3rl.checkpoints.files import checkpoints, checksum_file, remove, step_of
from e3rl.ledger.files import SUMMARY
from e3rl.ledger.logger import ledgers

KEY = "e3rl"


class RunCheckpoint(Checkpoint):
    """Saves on rollout steps (Lightning counts optimiser steps) and keeps the newest few.

    A step that is validated is saved before its validation, which may fail, and once more after it;
    a run that goes on from before a validation begins with it. So none is lost, nor repeated once
    it is over. Going on from an earlier checkpoint sets the later ones aside (`.superseded`), as it
    does their rows and the summary, which says that the run has ended. Beside weights, optimiser,
    loader and slots a checkpoint holds the ledgers' row counts and the states of all random
    generators.

    Where a signal asks for the end of the run (`stop`), the step is saved when it is over, or as it
    was before its validation, and Stopped is raised on all ranks.

    Args:
        folder: where `step-000064.ckpt` files go, or folders, by the trainer's strategy.
        every: rollout steps between checkpoints; the last step is always saved.
        keep: newest checkpoints that stay.
    """

    def __init__(self, folder: str, every: int = 16, keep: int = 2) -> None:
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(f"checkpoint every={every}, keep={keep}: use at least 1 of both")
        self.folder = Path(folder)
        self.every = every
        self.keep = keep
        self.stop = StopRequest()  # of whoever runs the trainer; this one is never entered
        self._generators: dict[str, Any] | None = None
        self._unsaved: dict[str, Any] | None = None  # the step that is being validated
        self._validates = False  # the step saved, or gone on from, is still to be validated

    @property
    def state_key(self) -> str:
        return "e3rl/checkpoint"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._generators is not None:  # set up code may have drawn numbers since loading
            restore_generators(self._generators)
            self._generators = None
            begin_next_epoch(trainer.fit_loop)
        if self._validates:
            validate_first(trainer.fit_loop)
        self.stop.patient = True

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        self._validates = False  # what was to be validated is behind, or is no longer due
        finished = rollout_step(trainer) + 1
        if validation_due(trainer, finished):  # whose start is the better moment
            return
        stopped = self.stop.agree()
        if stopped or self._due(trainer, finished):
            self._save(trainer, finished)
        if stopped:
            raise Stopped(stopped)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not is_training(trainer):  # nothing to save yet: a signal ends it at once
            return
        self.stop.patient = True
        finished = rollout_step(trainer) + 1
        going_on = self._validates  # from a checkpoint of this very moment
        self._validates, stopped = True, self.stop.agree()
        if not going_on and (stopped or self._due(trainer, finished)):
            self._save(trainer, finished)
        elif not going_on:  # by reference: a validation alters neither weights nor the optimiser
            self._unsaved = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if stopped:
            raise Stopped(stopped)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if not (stopped := self.stop.agree()):
            return
        if self._unsaved is not None:
            trainer.strategy.save_checkpoint(self._unsaved, self._path(rollout_step(trainer) + 1))
            trainer.strategy.barrier("saved")
            self._remove_old(trainer)
        raise Stopped(stopped)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        finished = rollout_step(trainer) + 1
        if not is_training(trainer):
            return
        self._unsaved, self._validates = None, False
        if self._due(trainer, finished):
            self._save(trainer, finished)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop.patient = False

    def _due(self, trainer: Trainer, finished: int) -> bool:
        return finished % self.every == 0 or finished == total_steps(trainer)

    def _save(self, trainer: Trainer, finished: int) -> None:
        trainer.save_checkpoint(self._path(finished))
        self._remove_old(trainer)

    def _path(self, finished: int) -> Path:
        return self.folder / f"step-{finished:06d}.ckpt"

    def _remove_old(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            for path in checkpoints(self.folder)[: -self.keep]:
                trainer.strategy.remove_checkpoint(path)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        rows = [ledger.rows() for ledger in ledgers(trainer)]
        checkpoint[KEY] = {
            "finished": rollout_step(trainer) + 1,
            "rows": rows[0] if rows else {},
            "generators": generator_states(),
            "validates": self._validates,
        }

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._generators = checkpoint[KEY]["generators"]
        self._validates = checkpoint[KEY].get("validates", False)  # older ones lack it
        kept, found = checkpoint[KEY]["rows"], ledgers(trainer)
        if trainer.is_global_zero:  # before the rows: a later checkpoint counts more of them
            for ledger in found:
                if any(rows > kept.get(file, 0) for file, rows in ledger.rows().items()):
                    set_summary_aside(ledger.run_dir)
            set_aside(self.folder, checkpoint[KEY]["finished"])
        for ledger in found:
            ledger.rewind(kept)


def begin_next_epoch(loop: _FitLoop) -> None:
    """Have a run that goes on from an epoch's last step count the next epoch as begun.

    Lightning takes it to be in the midst of that epoch still, does not count it, calls no
    `on_train_epoch_start`, and would train too long after the next checkpoint in it.
    """
    epochs = loop.epoch_progress.total
    if loop.restarted_mid_epoch and epochs.completed == epochs.ready:
        loop.reset_restart_stage()


def validate_first(loop: _FitLoop) -> None:
    """Have a run that goes on from before a validation begin with it.

    Lightning would take the validation of a checkpoint to be over.
    """
    loop.epoch_loop.val_loop._restart_stage = RestartStage.RESTARTED_MID_EVALUATION


def is_training(trainer: Trainer) -> bool:
    """Whether a validation is one of a run, not the baseline or a sanity check."""
    return trainer.state.fn == TrainerFn.FITTING and not trainer.sanity_checking


def validation_due(trainer: Trainer, finished: int) -> bool:
    """Whether Lightning validates after this many rollout steps."""
    every = trainer.val_check_batch
    if every is None or every == float("inf") or not trainer.enable_validation:
        return False
    epochs = trainer.check_val_every_n_epoch
    if epochs is None:
        return finished % int(every) == 0
    in_epoch = trainer.fit_loop.batch_idx + 1
    return (trainer.current_epoch + 1) % epochs == 0 and in_epoch % int(every) == 0


def set_aside(folder: Path, finished: int) -> None:
    """Rename the checkpoints of later rollout steps than `finished`, sound or damaged.

    Left in place they would outlive the newer ones that `keep` counts, and `ckpt_path=last` would
    take up a course that the ledgers have left.
    """
    for path in checkpoints(folder):
        if step_of(path) > finished:
            aside = path.with_name(f"{path.name}.superseded")
            remove(aside)  # that of an earlier course
            path.replace(aside)
            checksum_file(path).unlink(missing_ok=True)


def set_summary_aside(run_dir: Path) -> None:
    """Rename the summary of a run that goes on, which would count as finished where it is killed.

    On the disk before any row leaves the ledgers.
    """
    summary = run_dir / SUMMARY
    if summary.is_file():
        summary.replace(summary.with_name(f"{SUMMARY}.superseded"))
        sync_folder(run_dir)


def generator_states() -> dict[str, Any]:
    """Python's, numpy's and torch's generators as tensors and primitives."""
    numpy_state = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    keys = torch.from_numpy(np.asarray(numpy_state[1], dtype=np.int64))
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (numpy_state[0], keys, *numpy_state[2:]),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    """Put back what `generator_states` returned."""
    version, internal, gauss_next = states["python"]
    random.setstate((version, tuple(internal), gauss_next))
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"][: torch.cuda.device_count()])

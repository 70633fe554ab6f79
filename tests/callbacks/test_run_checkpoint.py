"""The checkpoint slot: which steps are saved, what stays, and going on from an earlier one."""

import io
import itertools
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scripted import Fit, StubModule, slots

from e3rl.callbacks.checkpoint import (
    RunCheckpoint,
    generator_states,
    restore_generators,
    set_aside,
    validation_due,
)
from e3rl.checkpoints.files import checkpoints, checksum_file, find_damage, newest_sound, step_of
from e3rl.ledger.ledger import read_rows

Make = Callable[..., Fit]


@pytest.fixture
def run(tmp_path: Path) -> Make:
    """Fits in one run folder, each from fresh objects."""

    def make(every: int = 1, keep: int = 2, **settings: Any) -> Fit:
        slot = RunCheckpoint(str(tmp_path / "checkpoints"), every, keep)
        return Fit({**slots(), "checkpoint": slot}, tmp_path, **settings)

    return make


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def saved(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints(folder / "checkpoints")]


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    rows = read_rows(folder / "metrics.jsonl")
    clocks = ("time/", "phase/", "speed/", "resources/", "cost/seconds")
    return [{k: x for k, x in row.items() if not k.startswith(clocks)} for row in rows]


def numbers() -> tuple[float, float, float]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_every_nth_step_and_the_last_are_saved_and_the_newest_stay(
    run: Make, tmp_path: Path
) -> None:
    run(every=4, keep=9, n_prompts=14, minibatches=2).fit()  # 7 steps, 14 optimiser steps
    assert saved(tmp_path) == [4, 7]
    run(every=2, keep=2, n_prompts=14).fit()
    assert saved(tmp_path) == [6, 7]
    assert all(not find_damage(path) for path in checkpoints(tmp_path / "checkpoints"))


def test_a_baseline_and_a_sanity_check_save_nothing(run: Make, tmp_path: Path) -> None:
    fit = run(validate_every=3, options={"num_sanity_val_steps": 1})
    fit.validate()
    assert not (tmp_path / "checkpoints").exists()
    fit.fit()
    assert saved(tmp_path) == [2, 3]  # of 3 steps; no step 0


def test_a_validated_step_is_saved_before_its_validation_and_after_it(
    run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[tuple[int, str]] = []
    save = RunCheckpoint._save

    def watched(self: RunCheckpoint, trainer: Any, finished: int) -> None:
        saved.append((finished, read_rows(tmp_path / "metrics.jsonl")[-1]["kind"]))
        save(self, trainer, finished)

    monkeypatch.setattr(RunCheckpoint, "_save", watched)
    run(n_prompts=8, validate_every=2).validate().fit()
    twice = [(2, "train"), (2, "validation")], [(4, "train"), (4, "validation")]
    assert saved == [(1, "train"), *twice[0], (3, "train"), *twice[1]]


@pytest.fixture
def fails_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has the n-th batch that is validated from now on fail, and none after it."""

    def fail_at(n: int) -> None:
        batches = itertools.count(1)

        def step(self: StubModule, batch: Any, batch_idx: int) -> None:
            if next(batches) == n:
                raise RuntimeError("the engine broke")

        monkeypatch.setattr(StubModule, "validation_step", step)

    return fail_at


# (when it is validated, the batch that fails, the checkpoint there is then); a validation has two.
@pytest.mark.parametrize(("every", "broken", "step"), [(3, 4, 6), (3, 2, 3), (2, 1, 2), (6, 1, 6)])
def test_a_validation_that_fails_loses_nothing(
    run: Make, tmp_path: Path, fails_once: Callable[[int], None], every: int, broken: int, step: int
) -> None:
    settings: dict[str, Any] = {"every": every, "epochs": 2, "validate_every": every}
    run(**settings).fit()
    whole = rows_without_times(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "metrics.jsonl").unlink()
    fails_once(broken)
    with pytest.raises(RuntimeError, match="the engine broke"):
        run(**settings).fit()
    assert saved(tmp_path)[-1] == step
    run(**settings).fit(newest_sound(tmp_path / "checkpoints"))
    assert saved(tmp_path)[-1] == 6
    assert rows_without_times(tmp_path) == whole
    run(**settings).fit(newest_sound(tmp_path / "checkpoints"))  # a finished run has nothing to do
    assert rows_without_times(tmp_path) == whole


def test_a_validation_that_is_no_longer_due_does_not_stand_for_the_next_one(
    run: Make, tmp_path: Path, fails_once: Callable[[int], None]
) -> None:
    fails_once(2)  # in the validation of step 3, whose checkpoint is to be validated
    with pytest.raises(RuntimeError, match="the engine broke"):
        run(every=3, epochs=2, validate_every=3).fit()
    assert saved(tmp_path) == [3]
    fails_once(1)  # in that of step 4, which is due now
    with pytest.raises(RuntimeError, match="the engine broke"):
        run(every=2, epochs=2, validate_every=2).fit(newest_sound(tmp_path / "checkpoints"))
    assert saved(tmp_path)[-1] == 4


def test_a_signal_is_awaited_in_training_alone(run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fit, patient = run(validate_every=3), list[bool]()
    stop = fit.stack["checkpoint"].stop  # type: ignore[attr-defined]

    def step(self: StubModule, batch: Any, batch_idx: int) -> None:
        patient.append(stop.patient)

    monkeypatch.setattr(StubModule, "validation_step", step)
    fit.validate()
    fit.fit()
    assert patient == [False, False, True, True]


def test_validation_by_epochs_is_foreseen_too() -> None:
    def due(finished: int, per_epoch: int, every: Any, epochs: int | None) -> bool:
        trainer: Any = SimpleNamespace(
            val_check_batch=every,
            check_val_every_n_epoch=epochs,
            enable_validation=True,
            current_epoch=(finished - 1) // per_epoch,
            fit_loop=SimpleNamespace(batch_idx=(finished - 1) % per_epoch),
        )
        return validation_due(trainer, finished)

    assert [n for n in range(1, 9) if due(n, 4, 3, None)] == [3, 6]
    assert [n for n in range(1, 9) if due(n, 4, 4, 2)] == [8]
    assert [n for n in range(1, 9) if due(n, 4, 3, 1)] == [3, 7]
    assert not due(4, 4, float("inf"), None)
    assert not due(4, 4, None, None)


def test_nothing_is_lost_where_validation_is_by_epochs(run: Make, tmp_path: Path) -> None:
    options = {"check_val_every_n_epoch": 2, "val_check_interval": 1.0}
    fit = run(keep=9, epochs=2)
    fit.trainer.check_val_every_n_epoch = options["check_val_every_n_epoch"]
    fit.validate_every = 1  # hand the validation loader over
    fit.trainer.val_check_interval = options["val_check_interval"]
    fit.fit()
    assert saved(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_going_on_from_an_earlier_checkpoint_sets_the_later_ones_and_rows_aside(
    run: Make, tmp_path: Path
) -> None:
    run(keep=9, n_prompts=12).fit()  # 6 steps
    folder = tmp_path / "checkpoints"
    rows = read_rows(tmp_path / "metrics.jsonl")
    run(keep=2, n_prompts=12, options={"limit_train_batches": 4}).fit(folder / "step-000002.ckpt")
    assert saved(tmp_path) == [3, 4]  # neither 5 nor 6 took a place among the newest
    assert newest_sound(folder) == folder / "step-000004.ckpt"
    aside = [f"step-{step:06d}.ckpt.superseded" for step in (3, 4, 5, 6)]
    assert [name for name in names(folder) if name.endswith(".superseded")] == aside
    now = read_rows(tmp_path / "metrics.jsonl")
    assert [row["rollout_step"] for row in now] == [0, 1, 2, 3]
    assert now[:2] == rows[:2]
    superseded = read_rows(tmp_path / "metrics.jsonl.superseded")
    assert superseded == rows[2:]


def test_a_damaged_newest_checkpoint_does_not_push_out_sound_ones(
    run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(every=3, n_prompts=12).fit()
    folder = tmp_path / "checkpoints"
    (folder / "step-000006.ckpt").write_bytes(b"cut short")
    with pytest.warns(UserWarning, match=r"passing over checkpoint .*step-000006"):
        start = newest_sound(folder)
    assert start == folder / "step-000003.ckpt"

    def fail_in_the_last_step(self: StubModule, batch: Any, batch_idx: int) -> None:
        if batch_idx == 5:
            raise FloatingPointError("diverged")

    monkeypatch.setattr(StubModule, "training_step", fail_in_the_last_step)
    with pytest.raises(FloatingPointError):
        run(every=1, keep=1, n_prompts=12).fit(start)
    assert saved(tmp_path) == [5]
    assert newest_sound(folder) == folder / "step-000005.ckpt"


def test_setting_aside_keeps_the_bytes_and_drops_the_checksums(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        path = tmp_path / f"step-{step:06d}.ckpt"
        path.write_text(str(step))
        checksum_file(path).write_text("sum")
    set_aside(tmp_path, 4)
    assert names(tmp_path) == [
        "step-000004.ckpt",
        "step-000004.ckpt.sha256",
        "step-000008.ckpt.superseded",
        "step-000012.ckpt.superseded",
    ]
    assert (tmp_path / "step-000012.ckpt.superseded").read_text() == "12"
    set_aside(tmp_path / "absent", 0)  # a checkpoint may be continued in a new folder


def test_random_generators_go_on_where_they_stood() -> None:
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    numbers()
    file = io.BytesIO()
    torch.save(generator_states(), file)
    file.seek(0)
    expected = numbers()
    random.seed(9)
    np.random.seed(9)
    torch.manual_seed(9)
    restore_generators(torch.load(file, weights_only=True))
    assert numbers() == expected


def test_generators_are_back_before_the_first_slot_of_a_resumed_run(
    run: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[int, tuple[float, float, float]] = {}

    def draw(fit: Fit) -> Fit:
        budget: Any = fit.stack["budget"]
        decide = budget.strategy.decide

        def drawing(ids: Any, total: int, step: int, epoch: int) -> Any:
            value = numbers()
            assert drawn.setdefault(step, value) == value
            return decide(ids, total, step, epoch)

        budget.strategy.decide = drawing
        return fit

    torch.manual_seed(1)
    draw(run(keep=9, epochs=2)).fit()
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    draw(run(keep=9, epochs=2)).fit(tmp_path / "checkpoints" / "step-000004.ckpt")
    assert len(drawn) == 6


@pytest.mark.parametrize(("every", "keep"), [(0, 1), (1, 0)])
def test_settings_below_one_are_refused(every: int, keep: int) -> None:
    with pytest.raises(ValueError, match=f"every={every}, keep={keep}"):
        RunCheckpoint("unused", every, keep)

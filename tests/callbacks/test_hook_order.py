"""What the stack relies on in Lightning: when hooks run, in which order, and on which batch."""

from pathlib import Path
from typing import Any

import pytest
from lightning import Callback
from scripted import Fit, StubModule, slots

from e3rl.batch import RolloutBatch
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.slot import Slot, rollout_step

START, STEP, END = "on_train_batch_start", "training_step", "on_train_batch_end"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, int]]:
    """(hook, callback, batch identity, rollout step) of every training hook, as they run."""
    written: list[tuple[str, str, int, int]] = []

    def watch(cls: type, hook: str, name: str) -> None:
        original = getattr(cls, hook)

        def watched(self: Any, trainer: Any, module: Any, *rest: Any) -> Any:
            batch = next(x for x in rest if isinstance(x, RolloutBatch))
            result = original(self, trainer, module, *rest)
            written.append((hook, name, id(batch), rollout_step(trainer)))
            return result

        monkeypatch.setattr(cls, hook, watched)

    for callback in [*slots().values(), RunCheckpoint("unused")]:
        assert isinstance(callback, Slot | RunCheckpoint)
        for hook in (START, END):
            if getattr(type(callback), hook) is not getattr(Callback, hook):
                watch(type(callback), hook, callback.state_key.removeprefix("e3rl/"))

    step = StubModule.training_step

    def stepped(self: StubModule, batch: RolloutBatch, batch_idx: int) -> None:
        batch.check()  # complete: tokens, rewards, advantages
        written.append((STEP, "module", id(batch), rollout_step(self.trainer)))
        step(self, batch, batch_idx)

    monkeypatch.setattr(StubModule, STEP, stepped)
    return written


def test_slots_complete_the_batch_then_the_module_updates_then_slots_learn(
    calls: list[tuple[str, str, int, int]], tmp_path: Path
) -> None:
    # First in the list, as an override might put it: Lightning moves it behind all others.
    stack = {"checkpoint": RunCheckpoint(str(tmp_path)), **slots()}
    Fit(stack, epochs=2, minibatches=3).fit()
    one_step = [
        *((START, name) for name in ("budget", "temperature", "reward", "rollout", "advantage")),
        (STEP, "module"),
        *((END, name) for name in ("budget", "temperature", "reward", "rollout", "metrics")),
        (END, "checkpoint"),
    ]
    assert [call[:2] for call in calls] == one_step * 6
    for step in range(6):
        part = calls[step * len(one_step) : (step + 1) * len(one_step)]
        assert len({batch for _, _, batch, _ in part}) == 1  # one object from start to end
        assert {index for *_, index in part} == {step}  # batches, not the 3 optimiser steps of each


def test_validation_follows_the_training_hooks_of_its_step(tmp_path: Path) -> None:
    order: list[str] = []

    class Recorder(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            order.append("trained")

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            order.append(f"validated after step {rollout_step(trainer)}")

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            order.append("validation ended")

    fit = Fit({**slots(), "recorder": Recorder()}, validate_every=2, n_prompts=8)
    fit.validate().fit()
    assert order == [
        *("validated after step -1", "validation ended"),
        *("trained", "trained", "validated after step 1", "validation ended"),
        *("trained", "trained", "validated after step 3", "validation ended"),
    ]

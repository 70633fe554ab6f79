"""A run that a signal ends saves its step, leaves with its exit code and goes on bit for bit."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import E3, Finished, check_goes_on, only_train, run, sound, whole_run

from e3rl.callbacks.reward import PooledScorer
from e3rl.engines.transformers import TransformersEngine
from e3rl.training.module import GRPOModule

OVERRIDES = (*E3, "checkpoint_every=4", "validate_every=2")
# Where a signal arrives: what is called then, at which call, and how many steps are saved by it.
MOMENTS: dict[str, tuple[Any, str, int, int]] = {
    "rollout": (TransformersEngine, "generate", 3, 2),
    "reward": (PooledScorer, "collect", 3, 2),
    "update": (GRPOModule, "_backward", 3, 3),
    "the step before a validation": (GRPOModule, "_backward", 2, 2),
    "checkpoint": (torch, "save", 1, 4),
    "the last step": (GRPOModule, "_backward", 6, 6),
    "validation": (TransformersEngine, "generate", 4, 2),
    "the validation of a saved step": (TransformersEngine, "generate", 7, 4),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """What a run that nobody stops samples, writes and ends with."""
    return whole_run(tmp_path_factory.mktemp("whole") / "run", *OVERRIDES)


@pytest.fixture(autouse=True)
def _only_train(monkeypatch: pytest.MonkeyPatch) -> None:
    only_train(monkeypatch)


def at_call(count: int, function: Any, then: Callable[[], None]) -> Any:
    """The function, which does something else first when it is called for that time."""
    calls = []

    def called(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            then()
        return function(*args, **kwargs)

    return called


def stop(folder: Path, sent: signal.Signals, place: Any, name: str, count: int) -> SystemExit:
    with pytest.MonkeyPatch.context() as patch:
        send = at_call(count, getattr(place, name), lambda: signal.raise_signal(sent))
        patch.setattr(place, name, send)
        with pytest.raises(SystemExit) as caught:
            run(folder, *OVERRIDES)
    return caught.value


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_is_heeded_at_the_end_of_the_step(
    moment: str, tmp_path: Path, whole: Finished, capfd: pytest.CaptureFixture[str]
) -> None:
    place, name, count, steps = MOMENTS[moment]
    sent = signal.SIGTERM if steps % 2 else signal.SIGUSR1
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    ended = stop(tmp_path / "run", sent, place, name, count)
    assert ended.code == 128 + sent
    steps = int(sound(tmp_path / "run")[-1].stem.split("-")[1])
    shown = capfd.readouterr()
    assert f"{sent.name}: the run ends after this rollout step, with a checkpoint" in shown.err
    assert f"stopped; go on after rollout step {steps} by the same command" in shown.out
    after = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    assert after == before
    check_goes_on(tmp_path / "run", OVERRIDES, whole, steps)

"""Every second of a run's main thread belongs to one phase."""

import threading

import pytest
from lightning.pytorch.profilers import SimpleProfiler

from e3rl.ledger import clock as clocks
from e3rl.ledger.clock import BACKWARD, NORM, PROBE, REWARD, SYNC, PhaseClock

ROLLOUT = "[Callback]e3rl/rollout.on_train_batch_start"
UPDATE = "[Strategy]SingleDeviceStrategy.training_step"
VALIDATION = "[Callback]e3rl/rollout.on_validation_batch_start"


class Hands:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def work(self, clock: PhaseClock, seconds: float, *actions: str) -> None:
        """Spend seconds in nested actions."""
        for action in actions:
            clock.start(action)
        self.now += seconds
        for action in reversed(actions):
            clock.stop(action)


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    found = Hands()
    monkeypatch.setattr(clocks, "time", found)
    return found


def test_a_step_is_counted_by_its_innermost_phases_and_adds_up(hands: Hands) -> None:
    clock = PhaseClock(began=90.0)
    hands.now += 3  # 13 seconds since the process began
    clock.start("run_training_epoch")
    clock.start(ROLLOUT)
    hands.work(clock, 16, SYNC)  # the first one starts the engine
    hands.work(clock, 1, SYNC)
    hands.now += 5
    hands.work(clock, 2, REWARD)
    clock.stop(ROLLOUT)
    clock.start("run_training_batch")
    clock.start(UPDATE)
    hands.work(clock, 0.5, PROBE)
    hands.now += 4
    hands.work(clock, 7, BACKWARD, "[LightningModule]GRPOModule.on_before_backward")
    hands.work(clock, 0.125, NORM)
    hands.work(clock, 0.25, "optimizer_step", "[LightningModule]GRPOModule.configure_x")
    clock.stop(UPDATE)
    clock.stop("run_training_batch")
    hands.now += 0.125
    hands.work(clock, 3, "[Callback]e3rl/checkpoint.on_train_batch_end", "save_checkpoint")
    row = clock.lap()
    assert row == {
        "phase/start_s": 13,
        "phase/engine_s": 16,
        "phase/sync_s": 1,
        "phase/rollout_s": 5,
        "phase/reward_s": 2,
        "phase/probe_s": 0.5,
        "phase/forward_s": 4,
        "phase/backward_s": 7,
        "phase/optimizer_s": 0.375,  # norm and step
        "phase/checkpoint_s": 3,
        "phase/rest_s": 0.125,
    }
    assert sum(row.values()) == hands.now - 90.0


def test_a_validation_is_one_phase_but_for_the_engines_start_and_checkpoints(
    hands: Hands,
) -> None:
    clock = PhaseClock()
    hands.work(clock, 8, VALIDATION, SYNC)
    hands.work(clock, 1, VALIDATION, SYNC)
    hands.work(clock, 2, VALIDATION, REWARD)
    hands.work(clock, 4, "[Callback]e3rl/checkpoint.on_validation_end", "save_checkpoint")
    hands.work(clock, 0.5, "[_EvaluationLoop].val_next")
    assert clock.lap() == {
        **{"phase/engine_s": 8, "phase/validation_s": 3.5, "phase/checkpoint_s": 4},
    }


def test_what_comes_between_actions_is_the_rest_and_after_the_end_the_finish(hands: Hands) -> None:
    clock = PhaseClock()
    hands.now += 1
    hands.work(clock, 2, ROLLOUT)
    hands.now += 3
    looked = clock.look()
    assert looked == {"phase/start_s": 1, "phase/rollout_s": 2, "phase/rest_s": 3}
    assert clock.lap() == looked
    clock.finish()
    hands.now += 5
    assert clock.lap() == {"phase/finish_s": 5}


def test_other_threads_neither_count_nor_reach_the_users_profiler(hands: Hands) -> None:
    inner = SimpleProfiler()
    clock = PhaseClock(inner)
    clock.start(UPDATE)
    beside = threading.Thread(target=hands.work, args=(clock, 2, REWARD))
    beside.start()
    beside.join()
    clock.stop(UPDATE)
    assert clock.lap() == {"phase/forward_s": 2}
    assert list(inner.recorded_durations) == [UPDATE]


def test_the_users_profiler_ends_what_an_error_left_open_too(hands: Hands) -> None:
    inner = SimpleProfiler()
    clock = PhaseClock(inner)
    for _ in range(2):
        clock.start("run_training_batch")
        clock.start("optimizer_step")  # Lightning does not stop it where the step raises
        clock.stop("run_training_batch")
    assert [len(inner.recorded_durations[name]) for name in ("optimizer_step",)] == [2]
    assert len(inner.recorded_durations["run_training_batch"]) == 2


def test_an_action_that_an_error_left_open_ends_with_the_one_around_it(hands: Hands) -> None:
    clock = PhaseClock()
    clock.start(ROLLOUT)
    clock.start(SYNC)
    clock.stop(ROLLOUT)
    clock.lap()
    hands.now += 1
    assert clock.lap() == {"phase/rest_s": 1}

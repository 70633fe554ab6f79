"""A run in which nothing happens any more is ended, and says where it hangs."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from e3rl.callbacks.stall import StallGuard

ROOT = Path(__file__).parents[2]
HANGING = """
import time
from e3rl.callbacks.stall import StallGuard

def wait_for_an_engine_that_never_answers():
    print("begun", flush=True)
    time.sleep(60)

guard = StallGuard(3.0)
guard.news()
wait_for_an_engine_that_never_answers()
"""


class Noted(StallGuard):
    """Notes that it would end the process."""

    ended = 0

    def end(self) -> None:
        self.ended += 1


def wait_for(guard: Noted) -> None:
    limit = time.monotonic() + 60
    while not guard.ended and time.monotonic() < limit:
        time.sleep(0.01)


def hanging() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HANGING],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


@pytest.mark.end_to_end
def test_a_process_that_hangs_ends_with_the_place_where_it_does() -> None:
    process = hanging()
    _, told = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "nothing has happened for 3 seconds" in told
    assert "ckpt_path=RUN_FOLDER" in told
    assert "in wait_for_an_engine_that_never_answers" in told


@pytest.mark.slow
def test_a_process_that_was_stopped_does_not_count_as_one_that_hangs() -> None:
    process = hanging()
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    time.sleep(4.0)
    process.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    process.communicate()


@pytest.mark.end_to_end
def test_news_begin_the_count_anew() -> None:
    guard = Noted(3.0)
    for hook in (
        guard.on_train_batch_start,
        guard.on_train_batch_end,
        guard.on_validation_batch_start,
        guard.on_validation_batch_end,
    ):
        guard._quiet = 2.0
        hook()
        assert guard._quiet < 1.0
    assert not guard.ended
    wait_for(guard)
    assert guard.ended == 1
    guard.rest()


def test_nobody_watches_after_the_end_or_without_a_limit() -> None:
    guard = Noted(1.0)
    guard.news()
    guard.rest()
    guard.rest()
    forever = Noted(None)
    forever.news()
    time.sleep(1.2)
    assert guard.ended == 0
    assert forever.ended == 0


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_a_limit_of_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"stall_s={seconds}: use seconds > 0"):
        StallGuard(seconds)

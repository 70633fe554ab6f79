"""Processes that watch over each other: none waits for a dead one, none outlives its run."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from torch.distributed import DistBackendError

from e3rl.runs import ranks
from e3rl.runs.ranks import RankDiedError, Ranks, find_death, is_lost_connection, watch_parent


class Launcher:
    """Stands in for what has started processes."""

    def __init__(self, *codes: str) -> None:
        self.procs = [subprocess.Popen([sys.executable, "-c", code]) for code in codes]


SLEEP, FAIL, DIE = (
    "import time; time.sleep(600)",
    "raise SystemExit(3)",
    "import os; os.kill(os.getpid(), 9)",
)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(ranks, "GRACE_S", 0.5)
    monkeypatch.setattr(ranks, "END_S", 0.5)
    made: list[Launcher] = []

    def make(*codes: str) -> Ranks:
        made.append(Launcher(*codes))
        watch = object.__new__(Ranks)
        watch._launcher = made[-1]  # type: ignore[assignment]
        return watch

    yield make
    for launcher in made:
        for process in launcher.procs:
            process.kill()


def test_a_dead_rank_is_named_with_how_it_ended() -> None:
    processes = Launcher("pass", DIE, FAIL).procs
    for process in processes:
        process.wait()
    assert "rank 2 of this machine" in str(find_death(processes))
    assert "was ended by SIGKILL" in str(find_death(processes))
    assert "was ended with exit code 3" in str(find_death(processes[2:]))
    assert find_death(processes[:1]) is None


def test_the_loss_of_a_rank_is_told_instead_of_what_its_socket_said(watched: Any) -> None:
    watch = watched(DIE, SLEEP)
    processes = list(watch._launcher.procs)
    with pytest.raises(RankDiedError, match=r"rank 1 .* SIGKILL.*ckpt_path"), watch:
        raise RuntimeError("[..gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize(
    "error", [OSError("no space left"), RuntimeError("a bug"), ValueError("x")]
)
def test_an_error_of_ones_own_stays_what_it_is_and_ends_the_others(
    watched: Any, error: Exception
) -> None:
    watch = watched(FAIL, SLEEP)
    processes = list(watch._launcher.procs)
    with pytest.raises(type(error), match=str(error)), watch:
        raise error
    assert all(process.poll() is not None for process in processes)


def test_a_run_that_ends_well_waits_for_its_processes(watched: Any) -> None:
    watch = watched("import time; time.sleep(0.2)")
    (process,) = watch._launcher.procs
    with watch:
        pass
    assert process.poll() == 0


def test_lost_connections_are_told_from_bugs() -> None:
    assert is_lost_connection(RuntimeError("Connection reset by peer"))
    assert is_lost_connection(DistBackendError("NCCL error in: ..."))
    assert not is_lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_connection(ValueError("connection closed by peer"))
    assert not is_lost_connection(None)


CHILD = """
import os, sys, time
from e3rl.runs import ranks
ranks.GRACE_S = ranks.LOOK_S = 0.1
ranks.watch_parent()
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1]])
time.sleep(600)
"""


@pytest.mark.end_to_end
def test_a_rank_ends_when_who_started_it_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    _, told = parent.communicate(timeout=60)  # ends when the child, which has the pipe too, does
    assert b"which started this one, is gone" in told
    assert child > 0


def test_a_lone_process_may_outlive_its_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    import threading

    before = threading.active_count()
    watch_parent()
    assert threading.active_count() == before

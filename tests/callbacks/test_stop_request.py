"""Signals are noted while a run can be saved soon, and end it at once while it cannot."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from e3rl.callbacks import stopping
from e3rl.callbacks.stopping import SIGNALS, Stopped, StopRequest


@pytest.fixture
def handlers() -> Iterator[None]:
    """The handlers of a process that somebody has just started, whatever this one's are."""
    before = {each: signal.getsignal(each) for each in SIGNALS}
    for each in SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


pytestmark = pytest.mark.usefixtures("handlers")


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_before_the_first_step_ends_the_process_at_once(sent: signal.Signals) -> None:
    with pytest.raises(Stopped) as caught, StopRequest():
        signal.raise_signal(sent)
    assert caught.value.code == 128 + sent


@pytest.mark.parametrize("other", [RuntimeError("interrupted"), SystemExit(1)])
def test_the_exit_code_is_the_signals_whatever_a_library_makes_of_it(other: BaseException) -> None:
    def by_a_library() -> None:
        with StopRequest():
            try:
                signal.raise_signal(signal.SIGINT)
            except Stopped:
                raise other from None

    with pytest.raises(Stopped) as caught:
        by_a_library()
    assert caught.value.code == 130
    assert caught.value.__cause__ is other


def test_errors_without_a_signal_are_their_own() -> None:
    def of_a_run() -> None:
        with StopRequest() as stop:
            stop.patient = True
            signal.raise_signal(signal.SIGTERM)  # noted: the run is still going
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        of_a_run()


@pytest.mark.parametrize("sent", SIGNALS)
def test_a_signal_within_a_step_is_noted(
    sent: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopRequest() as stop:
        stop.patient = True
        assert stop.agree() == 0
        signal.raise_signal(sent)
        signal.raise_signal(sent)  # torchrun hands on what its group has got already
        assert stop.agree() == sent
    assert capfd.readouterr().err.count(f"{sent.name}: the run ends after") == 1


def test_a_second_one_later_on_ends_the_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "AGAIN_S", 0.0)
    with StopRequest() as stop:
        stop.patient = True
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(signal.SIGINT)
    assert caught.value.code == 130


def test_the_first_that_some_rank_has_is_everybodys(monkeypatch: pytest.MonkeyPatch) -> None:
    others = [0.0, 1.0, 0.0]  # SIGTERM on another rank
    monkeypatch.setattr(
        stopping, "all_sum", lambda own: [x + y for x, y in zip(own, others, strict=True)]
    )
    with StopRequest() as stop:
        stop.patient = True
        assert stop.agree() == signal.SIGTERM
        signal.raise_signal(signal.SIGUSR1)
        assert stop.agree() == signal.SIGTERM


def test_ignored_signals_and_those_of_launchers_are_left_alone() -> None:
    def of_a_launcher(*_: object) -> None: ...

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, of_a_launcher)
    with StopRequest():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is of_a_launcher
        assert signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


# A main thread that waits in C, where no handler is called: for a lock that it holds itself.
DEAF = """
import ctypes, sys
from e3rl.callbacks import stopping
stopping.DEAF_S, stopping.AGAIN_S = 0.5, 0.2
with stopping.StopRequest() as stop:
    stop.patient = sys.argv[1] == "patient"
    system, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    system.pthread_mutex_lock(lock)
    print("deaf", flush=True)
    system.pthread_mutex_lock(lock)
"""


@pytest.fixture
def deaf() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes that hear nothing any more, before the first step and within one."""
    started = {
        kind: subprocess.Popen(
            [sys.executable, "-c", DEAF, kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for kind in ("patient", "at once")
    }
    for process in started.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "deaf\n"
    time.sleep(2)  # from that line to the lock
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.end_to_end
def test_a_process_that_waits_in_c_ends_at_once_where_it_is_to(
    deaf: dict[str, subprocess.Popen[str]],
) -> None:
    for process in deaf.values():
        process.send_signal(signal.SIGTERM)
    process = deaf["at once"]
    assert process.wait(timeout=60) == 143
    assert process.stderr is not None
    assert "SIGTERM: ends the process" in process.stderr.read()
    patient = deaf["patient"]
    time.sleep(1)
    assert patient.poll() is None  # the step may end yet
    patient.send_signal(signal.SIGUSR1)
    assert patient.wait(timeout=60) == 138


def test_a_fork_does_not_tell_its_parent_of_its_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "DEAF_S", 0.1)
    with StopRequest() as stop:
        if (child := os.fork()) == 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
            signal.raise_signal(signal.SIGTERM)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        time.sleep(0.5)  # or this process would have ended
        assert stop.agree() == 0


def test_whoever_else_hears_of_signals_stays_the_one() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer)
    try:
        with StopRequest() as stop:
            stop.patient = True
            signal.raise_signal(signal.SIGUSR1)
            assert os.read(reader, 1) == bytes([signal.SIGUSR1])
            assert stop.agree() == signal.SIGUSR1
        assert signal.set_wakeup_fd(before) == writer
    finally:
        os.close(reader)
        os.close(writer)

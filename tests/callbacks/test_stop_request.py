"""Signals are noted while a run can be saved soon, and end it at once while it cannot."""

import signal
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

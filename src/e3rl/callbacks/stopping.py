"""`StopRequest`: signals that end a run, heeded by all ranks at the same place.

A batch system that wants its machine back sends SIGTERM or SIGUSR1, a user presses Ctrl-C. Nothing
is done where the signal arrives, which may be in the midst of a collective: it is noted, and at the
end of each rollout step, and of each batch of a validation, ranks ask each other (`agree`) and
leave together, with a checkpoint. Before and after, where there is nothing to save, a signal ends
the process at once; so does a second one, later than `AGAIN_S`.

Python calls a handler when the main thread comes back from C, and one that waits there for a rank
that has died does not. So a thread of its own hears of signals as they arrive, and ends the process
where one that is to end it at once has not been noted for `DEAF_S`.
"""

import os
import signal
import socket
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

from e3rl.process.distributed import all_sum

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
AGAIN_S = 2.0  # torchrun passes on what its group has got already, and that is no second wish
DEAF_S = 5.0  # of a main thread that waits in C
NOTICE = "the run ends after this rollout step, with a checkpoint; once more ends it at once"


_mouths: set[int] = set()  # descriptors by which the system tells threads of ours


def _be_silent() -> None:
    """In a fork: it would tell its parent's thread of its own signals."""
    if _mouths and (other := signal.set_wakeup_fd(-1)) not in _mouths:
        signal.set_wakeup_fd(other)


os.register_at_fork(after_in_child=_be_silent)


class Stopped(SystemExit):
    """The end of a run that a signal asked for; its exit code is 128 plus the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopRequest(AbstractContextManager["StopRequest"]):
    """Catches `SIGNALS` while it is entered, in the main thread.

    A signal that is ignored, or that somebody else handles, is left alone: background jobs ignore
    Ctrl-C, and launchers have handlers of their own.

    `patient` is whether the run is where it can be saved soon. Where a signal has ended the process
    at once and a library makes another error of that, leaving raises `Stopped` all the same, so
    that the exit code stands for the signal.
    """

    def __init__(self) -> None:
        self.patient = False
        self._number = 0
        self._at = 0.0
        self._ending = 0  # the signal that has ended the process at once
        self._noted_at = 0.0  # when the main thread heard of a signal, whatever it did then
        self._before: dict[signal.Signals, Any] = {}
        self._mouth: socket.socket | None = None  # where the system tells the thread of signals
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                handler = signal.getsignal(each)
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[each] = signal.signal(each, self._note)
            self._listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._mouth is not None and self._thread is not None:
            signal.set_wakeup_fd(-1)
            _mouths.discard(self._mouth.fileno())
            self._over.set()
            self._mouth.close()  # the thread reads its end, and is done
            self._thread.join()
            self._mouth = self._thread = None
        while self._before:
            signal.signal(*self._before.popitem())
        if self._ending and error is not None and not isinstance(error, Stopped):
            raise Stopped(self._ending) from error

    def agree(self) -> int:
        """The signal that some rank has got, 0 for none; all ranks ask at the same places."""
        counts = all_sum([float(self._number == each) for each in SIGNALS])
        return next((int(each) for each, n in zip(SIGNALS, counts, strict=True) if n), 0)

    def _listen(self) -> None:
        """Let a thread hear of signals, unless somebody else (asyncio) has asked to."""
        ear, mouth = socket.socketpair()
        mouth.setblocking(False)
        if (other := signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)) != -1:
            signal.set_wakeup_fd(other)
            ear.close()
            mouth.close()
            return
        self._mouth = mouth
        _mouths.add(mouth.fileno())
        self._over.clear()
        self._thread = threading.Thread(target=self._hear, args=(ear,), name="signals", daemon=True)
        self._thread.start()

    def _hear(self, ear: socket.socket) -> None:
        first = float("inf")
        with ear:
            while heard := ear.recv(1):
                number, now = heard[0], time.monotonic()
                if number not in self._before:
                    continue
                at_once = not self.patient or now - first > AGAIN_S
                first = min(first, now)
                if at_once and not self._over.wait(DEAF_S) and self._noted_at < now - 1:
                    name = signal.Signals(number).name
                    os.write(2, f"\n{name}: ends the process, which waits elsewhere\n".encode())
                    os._exit(128 + number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._noted_at = time.monotonic()
        again = self._number and time.monotonic() - self._at > AGAIN_S
        if again or not self.patient:
            self._ending = number
            raise Stopped(number)
        if not self._number:
            self._number, self._at = number, time.monotonic()
            if os.environ.get("LOCAL_RANK", "0") == "0":
                # Not print, which may have been interrupted by this very signal.
                os.write(2, f"\n{signal.Signals(number).name}: {NOTICE}\n".encode())

"""`StopRequest`: signals that end a run, heeded by all ranks at the same place.

A batch system that wants its machine back sends SIGTERM or SIGUSR1, a user presses Ctrl-C. Nothing
is done where the signal arrives, which may be in the midst of a collective: it is noted, and at the
end of each rollout step, and of each batch of a validation, ranks ask each other (`agree`) and
leave together, with a checkpoint. Before and after, where there is nothing to save, a signal ends
the process at once; so does a second one, later than `AGAIN_S`.
"""

import os
import signal
import threading
import time
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from e3rl.distributed import all_sum

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
AGAIN_S = 2.0  # torchrun passes on what its group has got already, and that is no second wish
NOTICE = "the run ends after this rollout step, with a checkpoint; once more ends it at once"


class Stopped(SystemExit):
    """The end of a run that a signal asked for; its exit code is 128 plus the signal's number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)


class StopRequest(AbstractContextManager["StopRequest"]):
    """Catches `SIGNALS` while it is entered, in the main thread.

    A signal that is ignored, or that somebody else handles, is left alone: background jobs ignore
    Ctrl-C, and launchers have handlers of their own.

    `patient` is whether the run is where it can be saved soon.
    """

    def __init__(self) -> None:
        self.patient = False
        self._number = 0
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                handler = signal.getsignal(each)
                if handler in (signal.SIG_DFL, signal.default_int_handler):
                    self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def agree(self) -> int:
        """The signal that some rank has got, 0 for none; all ranks ask at the same places."""
        counts = all_sum([float(self._number == each) for each in SIGNALS])
        return next((int(each) for each, n in zip(SIGNALS, counts, strict=True) if n), 0)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again = self._number and time.monotonic() - self._at > AGAIN_S
        if again or not self.patient:
            raise Stopped(number)
        if not self._number:
            self._number, self._at = number, time.monotonic()
            if os.environ.get("LOCAL_RANK", "0") == "0":
                # Not print, which may have been interrupted by this very signal.
                os.write(2, f"\n{signal.Signals(number).name}: {NOTICE}\n".encode())

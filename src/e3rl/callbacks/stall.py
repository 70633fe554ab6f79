"""`StallGuard`: ends a run in which nothing happens any more, and says where it hangs."""

import faulthandler
import logging
import os
import sys
import threading
from typing import Any

from lightning import Callback, LightningModule, Trainer

LOOK_S = 10.0  # at most, between two looks
CODE = 1
log = logging.getLogger(__name__)


class StallGuard(Callback):
    """Ends the process where no batch begins or ends for too long.

    An engine, a collective or a file system that never answers would otherwise hold its machines
    until somebody looks. The stacks of all threads go to standard error, and the process ends at
    once, since what hangs cannot be asked to leave; the run goes on from its last checkpoint. A
    process that is stopped (Ctrl-Z, a machine asleep) does not count as one that hangs.

    Args:
        seconds: without any news; more than a step, or a batch of a validation, takes. None: wait
            for ever.

    Raises:
        ValueError: for seconds that are not above 0.
    """

    def __init__(self, seconds: float | None = 3600.0) -> None:
        if seconds is not None and seconds <= 0:
            raise ValueError(f"callbacks.stall.seconds={seconds}: use seconds > 0, or null")
        self.seconds = seconds
        self._quiet = 0.0  # seconds without news, as far as this process was running
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def news(self) -> None:
        """Begin to count anew."""
        self._quiet = 0.0
        if self.seconds is not None and self._thread is None:
            self._done.clear()
            self._thread = threading.Thread(target=self._watch, name="stall", daemon=True)
            self._thread.start()

    def rest(self) -> None:
        """Watch no more until there is news again; safe to call twice."""
        self._done.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        assert self.seconds is not None
        look = min(LOOK_S, self.seconds / 10)
        while not self._done.wait(look):
            self._quiet += look  # not the clock's time: the process may have been stopped
            if self._quiet >= self.seconds:
                self.end()
                return

    def end(self) -> None:
        """Say where every thread is, and end the process."""
        log.error(
            "nothing has happened for %g seconds (callbacks.stall.seconds), so the run ends; it "
            "goes on from its last checkpoint with ckpt_path=RUN_FOLDER. What every thread was in:",
            self.seconds,
        )
        faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
        os._exit(CODE)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.news()

    def on_train_batch_start(self, *_: Any) -> None:
        self.news()

    def on_train_batch_end(self, *_: Any) -> None:
        self.news()

    def on_validation_batch_start(self, *_: Any) -> None:
        self.news()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.news()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.rest()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.rest()

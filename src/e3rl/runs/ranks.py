"""Processes of a run that watch over each other, so that none is left waiting for a dead one.

The process that starts the others on its machine (rank 0, unless srun or torchrun does) looks after
them: where one dies, it says which, and how, and ends the rest. Each process that was started looks
whether the one that started it is still there.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from hydra.errors import CompactHydraException
from lightning import Trainer
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers import _SubprocessScriptLauncher
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

from e3rl.process.parent import GRACE_S, LOOK_S, watch_over_parent

END_S = 60.0  # for processes to end after the run has
FAILED = 1  # exit code of a process that has to be ended

Processes = Sequence["subprocess.Popen[Any]"]


class RankDiedError(CompactHydraException):
    """A process of the run has ended before its time; Hydra shows the message alone."""


class NoSignals(_SignalConnector):
    """Lightning's would talk to the other ranks from within a signal handler."""

    def register_signal_handlers(self) -> None:
        self.received_sigterm = False


class RankLauncher(_SubprocessScriptLauncher):
    """Lightning's launcher; who watches over the processes that it starts is up to us."""

    watch: "threading.Thread | None" = None

    def launch(
        self, function: Callable[..., Any], *args: Any, trainer: Any = None, **kwargs: Any
    ) -> Any:
        if not self.cluster_environment.creates_processes_externally:
            self.cluster_environment.validate_settings(
                num_devices=self.num_processes, num_nodes=self.num_nodes
            )
            self._call_children_scripts()
            threading.Thread(
                target=watch_over, args=(self.procs,), name="watch over ranks", daemon=True
            ).start()
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)


class Ranks(AbstractContextManager["Ranks"]):
    """The processes that this one starts for a run; leaving it waits for them to end, or ends them.

    Raises RankDiedError where the run fails because one of them died.
    """

    def __init__(self, trainer: Trainer) -> None:
        trainer._signal_connector = NoSignals(trainer)
        self._launcher: RankLauncher | None = None
        launcher = trainer.strategy.launcher
        if isinstance(launcher, _SubprocessScriptLauncher):
            self._launcher = RankLauncher(
                launcher.cluster_environment, launcher.num_processes, launcher.num_nodes
            )
            trainer.strategy._launcher = self._launcher

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        processes = [] if self._launcher is None else self._launcher.procs
        if not processes:
            return
        good_end = error is None or isinstance(error, SystemExit)
        wait_for(processes, END_S if good_end else GRACE_S, until_one_dies=not good_end)
        death = None if good_end else find_death(processes)
        left, processes[:] = list(processes), []  # nobody watches over them any more
        kill(left)
        if death is not None and is_lost_connection(error):
            raise RankDiedError(death) from error


def watch_over(processes: Processes) -> None:
    """Ends this process where one of those it has started dies and it does not notice itself."""
    while (death := find_death(processes)) is None:
        time.sleep(LOOK_S)
        if not processes:  # the run is over
            return
    for _ in range(int(2 * GRACE_S / LOOK_S)):
        time.sleep(LOOK_S)
        if not processes:
            return
    sys.stderr.write(f"\n{death}\n")
    sys.stderr.flush()
    kill(processes)
    os._exit(FAILED)


def watch_parent() -> None:
    """End this process when the one that started it does, if that was for a run of several ranks.

    Otherwise it would wait for others that nobody ends either.
    """
    if "LOCAL_RANK" in os.environ:
        watch_over_parent(os.getppid())


def wait_for(processes: Processes, seconds: float, until_one_dies: bool = False) -> None:
    """Until all have ended, or one has died, or the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(process.poll() is None for process in processes):
        if until_one_dies and find_death(processes):
            return
        time.sleep(LOOK_S / 10)


def find_death(processes: Processes) -> str | None:
    """Which process has ended other than with exit code 0, and how; None for none."""
    for rank, process in enumerate(processes, start=1):
        code = process.poll()
        if code:
            how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            return (
                f"rank {rank} of this machine (process {process.pid}) was ended {how}, and the run "
                "cannot go on without it. What it said stands above; go on from the last "
                "checkpoint with ckpt_path"
            )
    return None


def is_lost_connection(error: BaseException | None) -> bool:
    """Whether an error is what a collective raises when another process is gone."""
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        sign in text for sign in ("connection closed by peer", "connection reset", "gloo", "nccl")
    )


def kill(processes: Processes) -> None:
    for process in processes:
        process.kill()
        process.wait()

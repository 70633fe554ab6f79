"""`Worker`: one process that compares answers, and that is killed when it does not answer in time.

A comparison that hangs inside C code cannot be interrupted, only its process can. Workers are
forked from a clean server process that has math-verify loaded (`forkserver`): they share no
threads, locks or GPU context with the trainer, and a replacement starts ten times faster than a
new interpreter. Each has a pipe of its own, so that a killed one leaves no lock behind.
"""

import multiprocessing
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import TracebackType

from e3rl.rewards.verifier import TIMEOUT, Verdict, compare_answers

Compare = Callable[[str, str], Verdict]  # (gold, answer)

START_S = 120.0  # on a busy machine
GRACE_S = 5.0  # past the deadline, after which a worker that nobody has killed ends by itself
HUNG_UP = (EOFError, BrokenPipeError, ConnectionResetError)  # how a dead process looks here


class WorkerDied(Exception):
    """The process of a worker ended during a comparison."""


@dataclass(frozen=True)
class Comparison:
    """A verdict, and what it cost: CPU seconds of the worker, or the deadline that ended it.

    CPU time, since a comparison beside generation on shared cores takes longer by the clock than
    one that has a core to itself.
    """

    verdict: Verdict
    seconds: float


class Worker:
    """A process that runs `compare(gold, answer)`; use from one thread at a time."""

    def __init__(self, compare: Compare, deadline_s: float, memory_limit_mb: int) -> None:
        self.function = compare
        self.deadline_s = deadline_s
        self.memory_limit_mb = memory_limit_mb
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None

    def compare(self, gold: str, answer: str, extra_s: float = 0.0) -> Comparison:
        """The verdict and its cost, `timeout` after `deadline_s` seconds and `extra_s` more, of
        which at most `GRACE_S` come to effect.

        Starts the process if there is none.

        Raises WorkerDied where the process ended, and RuntimeError, with the worker's traceback,
        where `compare` raised or the process cannot start.
        """
        pipe = self._connected()
        try:
            pipe.send((gold, answer))
            if not pipe.poll(self.deadline_s + extra_s):
                self.kill()
                return Comparison(TIMEOUT, self.deadline_s)
            result = pipe.recv()
        except HUNG_UP as error:
            code = self.kill()
            if code == -signal.SIGALRM:
                return Comparison(TIMEOUT, self.deadline_s)
            raise WorkerDied(f"exit code {code} while comparing {answer!r}") from error
        if isinstance(result, str):
            self.kill()
            raise RuntimeError(f"comparing {answer!r} with {gold!r} raised in a worker:\n{result}")
        comparison: Comparison = result
        return comparison

    def kill(self) -> int | None:
        """End the process at once, if there is one; returns its exit code."""
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is None or pipe is None:
            return None
        process.kill()
        process.join()
        pipe.close()
        return process.exitcode

    def interrupt(self) -> None:
        """End a comparison from another thread: it raises WorkerDied in its own."""
        process = self._process
        if process is not None:
            process.kill()

    def _connected(self) -> Connection:
        """The pipe to a live process: one that died while idle is replaced without a word."""
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        return self._pipe

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([compare_answers.__module__])
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=serve,
            args=(theirs, self.function, self.deadline_s, self.memory_limit_mb, own_folder()),
            name="reward-worker",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        try:
            ready = self._pipe.poll(START_S) and self._pipe.recv()
        except HUNG_UP:
            ready = False
        if not ready:
            raise RuntimeError(
                f"a reward worker did not start (exit code {self.kill()}); its traceback is on "
                f"stderr. memory_limit_mb={self.memory_limit_mb} may be too low, or the main "
                "script lacks `if __name__ == '__main__':`"
            )


def serve(
    pipe: Connection,
    compare: Compare,
    deadline_s: float,
    memory_limit_mb: int,
    folder: str | None = None,
) -> None:
    """The life of a worker process: compare until the other end of the pipe is closed.

    An alarm, whose default action ends the process even inside C code, sees to it that a trainer
    that is killed leaves no hanging worker behind.
    """
    prepare(memory_limit_mb)
    try:
        pipe.send(True)
        while True:
            gold, answer = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, deadline_s + GRACE_S)
            started = time.process_time()
            with CarriedOver(pipe):
                verdict = compare(gold, answer)
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(Comparison(verdict, time.process_time() - started))
    except HUNG_UP:
        clear_up(folder)


def own_folder() -> str | None:
    """The temporary folder that multiprocessing has made for this process and its children.

    It holds the socket of the server that workers are forked from. None where this process is
    itself a child: the folder is its parent's then.
    """
    return get_temp_dir() if multiprocessing.parent_process() is None else None


def clear_up(folder: str | None) -> None:
    """Remove the trainer's temporary folder if it was killed before it could do so."""
    trainer = multiprocessing.parent_process()
    if trainer is not None and folder is not None:
        trainer.join(GRACE_S)
        if not trainer.is_alive():
            shutil.rmtree(folder, ignore_errors=True)


class CarriedOver:
    """Sends the traceback of what is raised inside to the trainer, where it is raised again."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.pipe.send("".join(traceback.format_exception(error)))
            sys.exit(1)  # the process is replaced; its traceback is told once, by the trainer


def prepare(memory_limit_mb: int) -> None:
    """Leave Ctrl-C to the trainer, bound this process's memory, warm math-verify up.

    The limit counts from what the process holds now.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + memory_limit_mb * 2**20
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    for gold, answer in ((r"\frac{1}{2}", "0.5"), (r"\sqrt{2}+1", r"1+\sqrt{2}")):
        compare_answers(gold, answer)

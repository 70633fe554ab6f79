"""`Worker`: one process that judges completions, and that is killed when it does not end in time.

What hangs inside C code cannot be interrupted, only its process can. Workers are forked from a
clean server process that has the scorer's module loaded (`forkserver`): they share no threads,
locks or GPU context with the trainer, and a replacement starts ten times faster than a new
interpreter. Each has a pipe of its own, so that a killed one leaves no lock behind.
"""

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import TracebackType
from typing import Any

from e3rl.process.leftovers import remove_if_killed
from e3rl.rewards.scorer import Scorer, Task
from e3rl.rewards.verdict import TIMEOUT, Verdict

START_S = 120.0  # on a busy machine
GRACE_S = 5.0  # past the deadline, after which a worker that nobody has killed ends by itself
PATIENCE = 10.0  # deadlines by the clock that a task may take on a busy machine
IDLE_SHARE = 0.02  # processor time within a deadline by the clock, below which a task only waits
OUT_OF_MEMORY = 12  # exit code of a worker that has used up its memory: ENOMEM
HUNG_UP = (EOFError, BrokenPipeError, ConnectionResetError)  # how a dead process looks here


class ScorerNotReadyError(RuntimeError):
    """A scorer could not load what it needs in a worker; the message has its traceback."""


class WorkerDied(Exception):
    """The process of a worker ended while it was judging."""


@dataclass(frozen=True)
class Judged:
    """Verdicts, and what they cost: CPU seconds of the worker, or the deadline that ended it.

    CPU time, since judging beside generation on shared cores takes longer by the clock than with a
    core to itself. `hung`: it computed for the whole deadline, so that a less busy machine would
    not have helped.
    """

    verdicts: Sequence[Verdict]
    seconds: float
    hung: bool = False


class Worker:
    """A process that judges tasks by a scorer; use from one thread at a time.

    `deadline_s` is processor time for one task, and several have it once for each; a task that
    waits instead of computing has as long by the clock.
    """

    def __init__(self, scorer: Scorer, deadline_s: float, memory_limit_mb: int) -> None:
        self.scorer = scorer
        self.deadline_s = deadline_s
        self.memory_limit_mb = memory_limit_mb
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None

    def judge(self, tasks: Sequence[Task], extra_s: float = 0.0) -> Judged:
        """The tasks' verdicts and their cost, all of them `timeout` after the deadline and
        `extra_s` more.

        Starts the process if there is none.

        Raises WorkerDied where the process ended, and RuntimeError, with the worker's traceback,
        where the scorer raised or the process cannot start.
        """
        pipe = self.connect()
        deadline_s = self.deadline_s * len(tasks)
        late = Judged([TIMEOUT] * len(tasks), deadline_s)
        began = self._processor_seconds()
        try:
            pipe.send((deadline_s, [task.content for task in tasks]))
            window, before = deadline_s + extra_s, began
            end = time.monotonic() + PATIENCE * deadline_s + extra_s
            while not pipe.poll(window):
                now = self._processor_seconds()
                hung, idle = now - began >= window, now - before < IDLE_SHARE * window
                if hung or idle or time.monotonic() >= end:
                    self.kill()
                    return replace(late, hung=hung)
                before = now
            result = pipe.recv()
        except HUNG_UP as error:
            code = self.kill()
            if code == -signal.SIGALRM:
                return late
            described = "\n".join(task.describe() for task in tasks)
            how = f"exit code {code}"
            if code == OUT_OF_MEMORY:
                how = f"it took more than memory_limit_mb={self.memory_limit_mb}"
            raise WorkerDied(f"{how} while judging {described}") from error
        if isinstance(result, str):
            self.kill()
            described = "\n".join(task.describe() for task in tasks)
            raise RuntimeError(f"judging {described} raised in a worker:\n{result}")
        judged: Judged = result
        return judged

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
        """End what is being judged, from another thread: it raises WorkerDied in its own."""
        process = self._process
        if process is not None:
            process.kill()

    def connect(self) -> Connection:
        """The pipe to a live process: one that died while idle is replaced without a word.

        Raises RuntimeError where it cannot start, with the traceback of what the scorer raised.
        """
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        return self._pipe

    def _processor_seconds(self) -> float:
        """What the process has computed so far; 0 where the system does not tell."""
        stat = Path(f"/proc/{self._process.pid if self._process else None}/stat")
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _start(self) -> None:
        if multiprocessing.parent_process() is None:  # else the folder is the parent's
            remove_if_killed(get_temp_dir())  # the socket of the server that forks is in it
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([type(self.scorer).__module__, *self.scorer.preload])
        self._pipe, theirs = context.Pipe()
        process = context.Process(
            target=serve,
            args=(theirs, self.scorer, self.memory_limit_mb),
            name="reward-worker",
            daemon=True,
        )
        process.start()
        self._process = process  # from here on it can be interrupted
        theirs.close()
        try:
            ready = self._pipe.poll(START_S) and self._pipe.recv()
        except HUNG_UP:
            ready = False
        if isinstance(ready, str):
            self.kill()
            raise ScorerNotReadyError(f"the reward cannot be prepared:\n{ready}")
        if not ready:
            raise RuntimeError(
                f"a reward worker did not start (exit code {self.kill()}); its traceback is on "
                f"stderr. memory_limit_mb={self.memory_limit_mb} may be too low, or the main "
                "script lacks `if __name__ == '__main__':`"
            )


def serve(pipe: Connection, scorer: Scorer, memory_limit_mb: int) -> None:
    """The life of a worker process: judge until the other end of the pipe is closed.

    An alarm, whose default action ends the process even inside C code, sees to it that a trainer
    that is killed leaves no hanging worker behind.
    """
    confine(memory_limit_mb)
    try:
        with CarriedOver(pipe):
            scorer.prepare()
        pipe.send(True)
        while True:
            deadline_s, contents = pipe.recv()
            signal.setitimer(signal.ITIMER_REAL, PATIENCE * deadline_s + GRACE_S)
            started = time.process_time()
            with CarriedOver(pipe):
                verdicts = score_within_memory(scorer, contents)
            signal.setitimer(signal.ITIMER_REAL, 0)
            pipe.send(Judged(verdicts, time.process_time() - started))
    except HUNG_UP:
        return


def score_within_memory(scorer: Scorer, contents: Sequence[Any]) -> Sequence[Verdict]:
    """The scorer's verdicts; where memory is short, this process ends.

    The limit counts what is left of earlier tasks too, so the trainer has a fresh process judge the
    task again.
    """
    try:
        return scorer.score(contents)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


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


def confine(memory_limit_mb: int) -> None:
    """Leave Ctrl-C to the trainer and bound this process's memory.

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

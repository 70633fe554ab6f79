"""`Workers`: comparisons in processes that can be killed, each under a deadline.

A comparison that hangs inside C code cannot be interrupted, only its process can; so every answer
runs in a worker that is killed when the deadline passes and replaced. Workers are forked from a
clean server process that has math-verify loaded (`forkserver`): they share no threads, locks or
GPU context with the trainer, and a replacement is ready in tens of milliseconds rather than the
second that a spawned interpreter takes.
"""

import ctypes
import logging
import multiprocessing
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pebble import ProcessExpired, ProcessPool

from e3rl.rewards.verifier import ERROR, TIMEOUT, Verdict, compare_answers

Compare = Callable[[str, str], Verdict]  # (gold, answer); runs in a worker

MAX_RESTARTS = 3  # of the whole pool, while one batch is being collected
POLL_S = 0.5  # how often a pending comparison is checked for a pool that has died
PR_SET_PDEATHSIG = 1  # prctl(2)

log = logging.getLogger(__name__)


@dataclass
class Job:
    """One comparison on its way, and the pool that has it."""

    gold: str
    answer: str
    future: "Future[Verdict]"
    pool: ProcessPool


class Workers:
    """A pool of `count` killable processes that run `compare(gold, answer)`.

    `deadline_s` is wall-clock time from the moment a worker takes the answer; `memory_limit_mb` is
    what a comparison may allocate beyond an idle worker. Processes start with the first job.
    """

    def __init__(
        self, compare: Compare, count: int, deadline_s: float, memory_limit_mb: int
    ) -> None:
        self.compare = compare
        self.count = count
        self.deadline_s = deadline_s
        self.memory_limit_mb = memory_limit_mb
        self._lock = threading.Lock()
        self._pool = self._new_pool()
        self._closed = False

    def schedule(self, gold: str, answer: str) -> Job:
        """Hand a comparison to the next free worker. RuntimeError after `close`."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the reward pool is closed; make a new RewardPool")
            if not self._pool.active:
                _stop(self._pool)
                self._pool = self._new_pool()
            pool = self._pool
            future = pool.schedule(self.compare, args=(gold, answer), timeout=self.deadline_s)
        return Job(gold, answer, future, pool)

    def results(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Verdict]]:
        """(position in `jobs`, verdict) of every job, as they become known.

        A job whose worker died is compared once more when all others are done, since another job
        may have starved it of memory; if its worker dies again, the verdict is `error`. Jobs lost
        with the whole pool, as when an idle worker is killed from outside, are handed to a new one.
        An exception that `compare` raises is raised here.
        """
        suspects = []
        for position, job in enumerate(jobs):
            try:
                verdict = self._finish(job)
            except ProcessExpired:
                suspects.append(position)
            else:
                yield position, verdict
        for position in suspects:
            yield position, self._second_chance(jobs[position])

    def _second_chance(self, job: Job) -> Verdict:
        try:
            return self._finish(self.schedule(job.gold, job.answer))
        except ProcessExpired as death:
            log.warning("comparing %r killed its worker twice: %s", job.answer, death)
            return ERROR

    def _finish(self, job: Job) -> Verdict:
        """The job's verdict, from a new pool where the old one died; ProcessExpired propagates."""
        for _ in range(MAX_RESTARTS):
            try:
                return self._wait(job)
            except BrokenProcessPool:
                job = self.schedule(job.gold, job.answer)
        raise RuntimeError(
            f"reward workers died {MAX_RESTARTS} times before they could compare anything; their "
            f"log lines say why, memory_limit_mb={self.memory_limit_mb} may be too low"
        )

    def _wait(self, job: Job) -> Verdict:
        """The job's verdict; BrokenProcessPool where its pool died, even before it could tell."""
        while not wait([job.future], timeout=POLL_S).done:
            if not job.pool.active:
                raise BrokenProcessPool("the pool stopped before the comparison began")
        try:
            return job.future.result()
        except TimeoutError as late:
            # An error that crossed from the worker has the worker's traceback for a cause.
            if late.__cause__ is not None:
                raise
            return TIMEOUT

    def close(self) -> None:
        """Kill all workers; what is still running is lost. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                _stop(self._pool)

    def _new_pool(self) -> ProcessPool:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([compare_answers.__module__])
        return ProcessPool(
            max_workers=self.count,
            initializer=prepare_worker,
            initargs=(self.memory_limit_mb,),
            context=context,
        )


def _stop(pool: Any) -> None:
    pool.stop()
    pool.join()


def prepare_worker(memory_limit_mb: int) -> None:
    """Bound the memory of this process, tie its life to its parent's, and warm math-verify up.

    The parent is the fork server, which ends with the trainer; so a trainer that is killed leaves
    no worker behind, not even one that hangs.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A Python handler would not run inside a C loop, and the kill would wait for seconds.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    pages = Path("/proc/self/statm")
    used = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + memory_limit_mb * 2**20
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    for gold, answer in ((r"\frac{1}{2}", "0.5"), (r"\sqrt{2}+1", r"1+\sqrt{2}")):
        compare_answers(gold, answer)

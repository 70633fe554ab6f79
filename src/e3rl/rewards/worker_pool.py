"""`Workers`: several worker processes, and the threads that watch them."""

import heapq
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from e3rl.rewards.verifier import ERROR
from e3rl.rewards.worker import Compare, Comparison, Worker, WorkerDied

log = logging.getLogger(__name__)


@dataclass
class Job:
    """One comparison on its way."""

    gold: str
    answer: str
    future: "Future[Comparison]"


def makespan(seconds: Sequence[float], workers: int) -> float:
    """Seconds until `workers` have done all jobs, each taking the next one when it is free.

    Jobs are taken in the order given, which is how `Workers` hands them out:
    e(i) = min over workers of when they are free + seconds(i); the result is max e(i), 0 for none.
    """
    free = [0.0] * workers
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


class Workers:
    """`count` killable processes, each with a thread here that hands it jobs and watches the time.

    `deadline_s` is wall-clock time from the moment a worker gets the answer; `memory_limit_mb` is
    what a comparison may allocate. Processes start with the first job.
    """

    def __init__(
        self, compare: Compare, count: int, deadline_s: float, memory_limit_mb: int
    ) -> None:
        self._workers = [Worker(compare, deadline_s, memory_limit_mb) for _ in range(count)]
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="reward")
        self._lock = threading.Lock()
        self._closed = False

    def schedule(self, gold: str, answer: str, extra_s: float = 0.0) -> Job:
        """Queue a comparison for the next free worker, with more time if `extra_s` says so.

        Raises RuntimeError after `close`.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the reward pool is closed; make a new RewardPool")
            return Job(gold, answer, self._threads.submit(self._compare, gold, answer, extra_s))

    def results(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Comparison]]:
        """(position in `jobs`, comparison) of every job, as they become known.

        A job whose worker died is compared once more when all others are done, since a neighbour
        may have starved it of memory; if its worker dies again, the verdict is `error`. Whatever
        else `compare` raises is raised here.
        """
        suspects = []
        for position, job in enumerate(jobs):
            try:
                comparison = job.future.result()
            except WorkerDied:
                suspects.append(position)
            else:
                yield position, comparison
        for position in suspects:
            yield position, self._second_chance(jobs[position])

    def close(self) -> None:
        """Kill all workers; jobs that wait or run are lost. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.interrupt()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.kill()

    def _second_chance(self, job: Job) -> Comparison:
        try:
            return self.schedule(job.gold, job.answer).future.result()
        except WorkerDied as death:
            log.warning("an answer killed its worker twice, it earns 0: %s", death)
            return Comparison(ERROR, 0.0)

    def _compare(self, gold: str, answer: str, extra_s: float) -> Comparison:
        """Runs in a thread; there are as many workers as threads, so one is always free."""
        worker = self._free.get()
        try:
            return worker.compare(gold, answer, extra_s)
        finally:
            self._free.put(worker)

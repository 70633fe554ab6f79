"""`Workers`: several worker processes that share one queue of comparisons."""

import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue

from e3rl.rewards.verifier import ERROR, Verdict
from e3rl.rewards.worker import Compare, Worker, WorkerDied

log = logging.getLogger(__name__)


@dataclass
class Job:
    """One comparison on its way."""

    gold: str
    answer: str
    future: "Future[Verdict]" = field(default_factory=Future)


class Workers:
    """`count` killable processes, each with a thread here that hands it jobs and watches the time.

    `deadline_s` is wall-clock time from the moment a worker gets the answer; `memory_limit_mb` is
    what a comparison may allocate. Processes start with the first job.
    """

    def __init__(
        self, compare: Compare, count: int, deadline_s: float, memory_limit_mb: int
    ) -> None:
        self._workers = [Worker(compare, deadline_s, memory_limit_mb) for _ in range(count)]
        self._queue: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closed = False

    def schedule(self, gold: str, answer: str) -> Job:
        """Queue a comparison for the next free worker. RuntimeError after `close`."""
        job = Job(gold, answer)
        with self._lock:
            if self._closed:
                raise RuntimeError("the reward pool is closed; make a new RewardPool")
            if not self._threads:
                self._threads = [
                    threading.Thread(target=self._keep, args=(worker,), daemon=True)
                    for worker in self._workers
                ]
                for thread in self._threads:
                    thread.start()
            self._queue.put(job)
        return job

    def results(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Verdict]]:
        """(position in `jobs`, verdict) of every job, as they become known.

        A job whose worker died is compared once more when all others are done, since a neighbour
        may have starved it of memory; if its worker dies again, the verdict is `error`. Whatever
        else `compare` raises is raised here.
        """
        suspects = []
        for position, job in enumerate(jobs):
            try:
                verdict = job.future.result()
            except WorkerDied:
                suspects.append(position)
            else:
                yield position, verdict
        for position in suspects:
            yield position, self._second_chance(jobs[position])

    def close(self) -> None:
        """Kill all workers; jobs that wait or run are lost. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for _ in self._threads:
            self._queue.put(None)
        for worker in self._workers:
            worker.interrupt()
        for thread in self._threads:
            thread.join()

    def _second_chance(self, job: Job) -> Verdict:
        try:
            return self.schedule(job.gold, job.answer).future.result()
        except WorkerDied as death:
            log.warning("an answer killed its worker twice, it earns 0: %s", death)
            return ERROR

    def _keep(self, worker: Worker) -> None:
        """A thread's loop: one job after the other to one worker."""
        while (job := self._queue.get()) is not None:
            if self._closed:
                job.future.cancel()
                continue
            try:
                job.future.set_result(worker.compare(job.gold, job.answer))
            except Exception as error:
                # Belongs to whoever waits for the job, and is raised there.
                job.future.set_exception(error)
        worker.kill()

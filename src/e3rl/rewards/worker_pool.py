"""`Workers`: several worker processes, and the threads that watch them."""

import heapq
import logging
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue

from e3rl.rewards.hung import HungTasks
from e3rl.rewards.scorer import Scorer, Task
from e3rl.rewards.verdict import ERROR, TIMEOUT, Verdict
from e3rl.rewards.worker import Judged, Worker, WorkerDied

log = logging.getLogger(__name__)


@dataclass
class Job:
    """Tasks that one worker judges together, on their way."""

    tasks: Sequence[Task]
    future: "Future[Judged]"


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

    `deadline_s` is processor time for a task; `memory_limit_mb` is what a job may allocate.
    Processes start with the first job. A task that computed until the deadline is not tried again.
    """

    def __init__(self, scorer: Scorer, count: int, deadline_s: float, memory_limit_mb: int) -> None:
        self._workers = [Worker(scorer, deadline_s, memory_limit_mb) for _ in range(count)]
        self._hung = HungTasks()
        self._free: SimpleQueue[Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="reward")
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> None:
        """Start a worker; raises ScorerNotReadyError where the scorer cannot be prepared."""
        self._workers[0].connect()

    def schedule(
        self, tasks: Sequence[Task], extra_s: float | None = None, fresh: bool = False
    ) -> Job:
        """Queue tasks for the next free worker; with `extra_s` more time, however often they hung.

        `fresh`: in a process that has judged nothing before.

        Raises RuntimeError after `close`.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the reward pool is closed; make a new one")
            return Job(tasks, self._threads.submit(self._judge, tasks, extra_s, fresh))

    def results(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Judged]]:
        """(position in `jobs`, its verdicts) of every job, as they become known.

        A job whose worker died is judged once more when all others are done, task by task, each in
        a fresh process, since a neighbour may have starved it of memory, or an earlier task leaked
        it; so is one of several tasks that ran out of time.
        If a task's worker dies again, its verdict is `error`. Whatever else the scorer raises is
        raised here.
        """
        suspects = []
        for position, job in enumerate(jobs):
            try:
                judged = job.future.result()
            except WorkerDied:
                suspects.append(position)
                continue
            if len(job.tasks) > 1 and TIMEOUT in judged.verdicts:
                suspects.append(position)
            else:
                yield position, judged
        for position in suspects:
            again = [self._second_chance(task) for task in jobs[position].tasks]
            verdicts = [verdict for judged in again for verdict in judged.verdicts]
            yield position, Judged(verdicts, sum(judged.seconds for judged in again))

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

    def _second_chance(self, task: Task) -> Judged:
        try:
            return self.schedule([task], fresh=True).future.result()
        except WorkerDied as death:
            log.warning("an answer killed its worker twice, it earns 0: %s", death)
            verdicts: list[Verdict] = [ERROR]
            return Judged(verdicts, 0.0)

    def _judge(self, tasks: Sequence[Task], extra_s: float | None, fresh: bool) -> Judged:
        """Runs in a thread; there are as many workers as threads, so one is always free."""
        remembers = len(tasks) == 1 and extra_s is None
        if remembers and self._hung.knows(tasks[0]):
            return Judged([TIMEOUT], 0.0)
        worker = self._free.get()
        try:
            if fresh:
                worker.kill()
            judged = worker.judge(tasks, extra_s or 0.0)
        finally:
            self._free.put(worker)
        if remembers and judged.hung:
            self._hung.add(tasks[0])
        return judged

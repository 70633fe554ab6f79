"""`RewardPool`: rewards of many completions, in order, while others are still being sampled."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tqdm import tqdm

from e3rl.rewards.scorer import Begun, Question, Scorer, Task
from e3rl.rewards.verdict import STATUSES, TIMEOUT, Status, Verdict
from e3rl.rewards.worker import Judged
from e3rl.rewards.worker_pool import Job, Workers, makespan

CACHE_SIZE = 65_536  # verdicts kept; an entry is two short strings
SELF_TEST_TRIES = 5


@dataclass
class _Waiting:
    """A task without a verdict yet; it has no job while it waits for others to go with."""

    task: Task
    job: Job | None = None


class RewardPool(AbstractContextManager["RewardPool"]):
    """Judges completions by a scorer: `submit` from any thread, `collect` in order.

    What the scorer decides at once is decided in this process, everything else in `workers`
    killable processes. What hangs there costs at most `deadline_s` of one worker and earns 0; so
    does what takes more than `memory_limit_mb` of memory or kills its worker twice. Tasks with
    equal keys are judged once.

    The deadline is processor time, so that verdicts do not depend on what else the machine does;
    what waits instead of computing has as long by the clock.

    Args:
        scorer: who judges, see `Scorer`.
        workers: processes, at least 1; they start with the first task.
        deadline_s: seconds that a task may compute, above 0.
        memory_limit_mb: MiB a task may allocate, at least 64.

    `counters` holds the number of collected verdicts by status since the pool was made;
    `scoring_s` what the tasks of the last `collect` would have taken from its call on, had none
    begun before: the makespan of their CPU seconds over the same workers.
    """

    def __init__(
        self,
        scorer: Scorer,
        workers: int = 2,
        deadline_s: float = 1.0,
        memory_limit_mb: int = 2048,
    ) -> None:
        for name, value, least in (
            ("workers", workers, 1),
            ("memory_limit_mb", memory_limit_mb, 64),
        ):
            if value < least:
                raise ValueError(f"{name}={value}; it must be at least {least}")
        if not deadline_s > 0:
            raise ValueError(f"deadline_s={deadline_s}; it must be above 0 seconds")
        self.scorer = scorer
        self.counters: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        self.scoring_s = 0.0
        self._trusted = False  # passed its self-test
        self._count = workers
        self._workers = Workers(scorer, workers, deadline_s, memory_limit_mb)
        self._lock = threading.Lock()
        self._pending: list[tuple[Verdict | _Waiting, str | None]] = []  # with the answer's text
        self._buffer: list[_Waiting] = []  # scheduled together once there are enough
        self._running: dict[Hashable, _Waiting] = {}
        self._cache: OrderedDict[Hashable, Verdict] = OrderedDict()

    def check(self, questions: Iterable[Question]) -> None:
        """Raise where no completion could earn anything: before a run, with the reason.

        Raises what the scorer's `check` does, and ScorerNotReadyError where it cannot be prepared.
        """
        self.scorer.check(questions)
        if self.scorer.may_not_load:
            self._workers.start()

    def submit(self, completion: str, question: Question) -> int:
        """Begin to judge a completion; returns its position in the next `collect`."""
        begun = self.scorer.begin(completion, question)
        answer = self.scorer.read(completion)
        with self._lock:
            self._pending.append((self._known_or_scheduled(begun), answer))
            return len(self._pending) - 1

    def collect(self, progress: bool = False) -> list[Verdict]:
        """Verdicts of everything submitted since the last call, in the order of submission.

        Blocks. With `progress`, a bar appears when it takes longer than 2 seconds. Raises what
        the scorer raised in a worker, and RuntimeError where workers cannot be started.
        """
        with self._lock:
            pending, self._pending = self._pending, []
        verdicts, seconds = self._settle([item for item, _ in pending], "rewards", progress)
        self.scoring_s = makespan(seconds, self._count)
        collected = [
            replace(verdict, answer=None if answer is None else self.scorer.normalize(answer))
            for verdict, (_, answer) in zip(verdicts, pending, strict=True)
        ]
        for status, count in Counter(verdict.status for verdict in collected).items():
            self.counters[status] += count
        return collected

    def read(self, completion: str) -> str | None:
        """The answer of a completion as it is written there; None where it has none."""
        return self.scorer.read(completion)

    def equal(self, pairs: Sequence[tuple[str, str]], progress: bool = False) -> list[bool]:
        """Whether the second answer of each pair is right where the first is the gold answer.

        Answers are those that `read` returns. Counters and pending completions stay as they are;
        what cannot be compared in time is not equal. Raises as `collect` does.
        """
        begun = [self.scorer.compare(gold, answer) for gold, answer in pairs]
        with self._lock:
            items = [self._known_or_scheduled(each) for each in begun]
        verdicts, _ = self._settle(items, "equal answers", progress)
        return [verdict.is_correct for verdict in verdicts]

    def self_test(self) -> None:
        """Judge completions of known standing, in this process and in a worker.

        Leaves counters, cache and pending completions alone; once passed it is not repeated.
        Raises RuntimeError naming the case that came out differently.
        """
        if self._trusted:
            return
        for case, begun in self.scorer.known_answers():
            case.check(begun if isinstance(begun, Verdict) else self._judge_patiently(begun))
        self._trusted = True

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers. May be called twice."""
        self._workers.close()

    def _judge_now(self, task: Task, extra_s: float) -> Verdict:
        job = self._workers.schedule([task], extra_s)
        ((_, judged),) = self._workers.results([job])
        return judged.verdicts[0]

    def _judge_patiently(self, task: Task) -> Verdict:
        """A busy machine may let a known answer time out, so every try has a second more; a broken
        verifier times out in all of them."""
        verdicts = (self._judge_now(task, extra) for extra in range(SELF_TEST_TRIES))
        return next((verdict for verdict in verdicts if verdict != TIMEOUT), TIMEOUT)

    def _known_or_scheduled(self, begun: Begun) -> Verdict | _Waiting:
        """The verdict where it is known, else the task, which is on its way then."""
        if isinstance(begun, Verdict):
            return begun
        known = self._cache.get(begun.key) or self._running.get(begun.key)
        if known is None:
            known = self._running[begun.key] = _Waiting(begun)
            self._buffer.append(known)
            if len(self._buffer) >= self.scorer.batch_size:
                self._schedule_buffer()
        return known

    def _schedule_buffer(self) -> None:
        together, self._buffer = self._buffer, []
        if together:
            job = self._workers.schedule([waiting.task for waiting in together])
            for waiting in together:
                waiting.job = job

    def _settle(
        self, items: Sequence[Verdict | _Waiting], name: str, progress: bool
    ) -> tuple[list[Verdict], list[float]]:
        """The verdict of every item, and the seconds of every job that this waited for."""
        with self._lock:
            self._schedule_buffer()
        jobs = [item.job for item in items if isinstance(item, _Waiting) and item.job is not None]
        jobs = list({id(job): job for job in jobs}.values())
        found: dict[Hashable, Verdict] = {}
        seconds = []
        with tqdm(total=len(jobs), desc=name, delay=2, disable=not progress) as bar:
            for position, judged in self._workers.results(jobs):
                seconds.append(judged.seconds)
                found |= self._remember(jobs[position], judged)
                bar.update()
        verdicts = [found[i.task.key] if isinstance(i, _Waiting) else i for i in items]
        return verdicts, seconds

    def _remember(self, job: Job, judged: Judged) -> dict[Hashable, Verdict]:
        """The job's verdicts by key. Judgements are kept; a timeout or a crash may be the fault of
        the moment and is not."""
        found = {task.key: v for task, v in zip(job.tasks, judged.verdicts, strict=True)}
        with self._lock:
            for key, verdict in found.items():
                self._running.pop(key, None)
                if verdict.status not in ("timeout", "error"):
                    self._cache[key] = verdict
                    if len(self._cache) > CACHE_SIZE:
                        self._cache.popitem(last=False)
        return found

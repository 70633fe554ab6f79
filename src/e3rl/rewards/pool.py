"""`RewardPool`: rewards of many completions, in order, while others are still being sampled."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tqdm import tqdm

from e3rl.rewards.answer_formats import AnswerFormat, normal_form, read_answer
from e3rl.rewards.known_answers import KNOWN_COMPARISONS, KNOWN_COMPLETIONS
from e3rl.rewards.verifier import (
    CORRECT,
    TIMEOUT,
    UNPARSED,
    Status,
    Verdict,
    compare_answers,
    judge_by_text,
)
from e3rl.rewards.worker import Compare, Comparison
from e3rl.rewards.worker_pool import Job, Workers, makespan

CACHE_SIZE = 65_536  # verdicts kept; an entry is two short strings
SELF_TEST_TRIES = 5
STATUSES: tuple[Status, ...] = ("correct", "wrong", "unparsed", "timeout", "error")


class RewardPool(AbstractContextManager["RewardPool"]):
    """Judges completions of one problem set: `submit` from any thread, `collect` in order.

    The format is checked, integers are compared and restated questions rejected in this process;
    everything else is compared in `workers` killable processes. An answer that hangs costs at most
    `deadline_s` of one worker and earns 0; so does one that takes more than `memory_limit_mb` of
    memory or kills its worker twice. The same (gold, answer) is compared once.

    A deadline in wall-clock time makes slow comparisons depend on the machine's load; integers
    are never concerned.

    Args:
        answer_format: `integer_box` or `math_box`, see `e3rl.rewards.answer_formats.read_answer`.
        workers: processes, at least 1; they start with the first comparison.
        deadline_s: seconds a comparison may take, above 0.
        memory_limit_mb: MiB a comparison may allocate, at least 64.
        max_answer_chars: longer answers are `unparsed`, at least 1.
        compare: (gold, answer) -> Verdict, an importable function; what it raises, `collect` does.

    `counters` holds the number of collected verdicts by status since the pool was made;
    `scoring_s` what the comparisons of the last `collect` would have taken from its call on, had
    none begun before: the makespan of their CPU seconds over the same workers.
    """

    def __init__(
        self,
        answer_format: AnswerFormat = "integer_box",
        workers: int = 2,
        deadline_s: float = 1.0,
        memory_limit_mb: int = 2048,
        max_answer_chars: int = 300,
        compare: Compare = compare_answers,
    ) -> None:
        if answer_format not in KNOWN_COMPLETIONS:
            raise ValueError(
                f"answer_format={answer_format!r}; choose one of {list(KNOWN_COMPLETIONS)}"
            )
        for name, value, least in (
            ("workers", workers, 1),
            ("memory_limit_mb", memory_limit_mb, 64),
            ("max_answer_chars", max_answer_chars, 1),
        ):
            if value < least:
                raise ValueError(f"{name}={value}; it must be at least {least}")
        if not deadline_s > 0:
            raise ValueError(f"deadline_s={deadline_s}; it must be above 0 seconds")
        self.answer_format: AnswerFormat = answer_format
        self.max_answer_chars = max_answer_chars
        self.counters: dict[Status, int] = dict.fromkeys(STATUSES, 0)
        self.scoring_s = 0.0
        self._trusted = False  # passed its self-test
        self._count = workers
        self._workers = Workers(compare, workers, deadline_s, memory_limit_mb)
        self._lock = threading.Lock()
        self._pending: list[tuple[Verdict | Job, str | None]] = []  # with the answer's text
        self._running: dict[tuple[str, str], Job] = {}
        self._cache: OrderedDict[tuple[str, str], Verdict] = OrderedDict()

    def submit(self, completion: str, gold: str, prompt: str) -> int:
        """Begin to judge a completion; returns its position in the next `collect`."""
        answer = self.read(completion)
        verdict = self._judge(answer, gold, prompt)
        with self._lock:
            judged = verdict or self._known_or_scheduled(gold, answer or "")
            self._pending.append((judged, answer))
            return len(self._pending) - 1

    def collect(self, progress: bool = False) -> list[Verdict]:
        """Verdicts of everything submitted since the last call, in the order of submission.

        Blocks. With `progress`, a bar appears when it takes longer than 2 seconds. Raises what
        our own code raised in a worker, and RuntimeError where workers cannot be started.
        """
        with self._lock:
            pending, self._pending = self._pending, []
        verdicts, seconds = self._settle([item for item, _ in pending], "rewards", progress)
        self.scoring_s = makespan(seconds, self._count)
        collected = [
            replace(verdict, answer=None if answer is None else normal_form(answer))
            for verdict, (_, answer) in zip(verdicts, pending, strict=True)
        ]
        for status, count in Counter(verdict.status for verdict in collected).items():
            self.counters[status] += count
        return collected

    def read(self, completion: str) -> str | None:
        """The answer of a completion as it is written there; None where it breaks the format."""
        return read_answer(completion, self.answer_format, self.max_answer_chars)

    def equal(self, pairs: Sequence[tuple[str, str]], progress: bool = False) -> list[bool]:
        """Whether the second answer of each pair is right where the first is the gold answer.

        Answers are those that `read` returns. Counters and pending completions stay as they are;
        what cannot be compared in time is not equal. Raises as `collect` does.
        """
        judged = [judge_by_text(answer, gold, "") for gold, answer in pairs]
        with self._lock:
            items = [
                verdict or self._known_or_scheduled(gold, answer)
                for verdict, (gold, answer) in zip(judged, pairs, strict=True)
            ]
        return [each == CORRECT for each in self._settle(items, "equal answers", progress)[0]]

    def self_test(self) -> None:
        """Judge completions of known standing, in this process and in a worker.

        Leaves counters, cache and pending completions alone; once passed it is not repeated.
        Raises RuntimeError naming the case that came out differently.
        """
        if self._trusted:
            return
        for case in KNOWN_COMPLETIONS[self.answer_format]:
            answer = self.read(case.completion)
            verdict = self._judge(answer, case.gold, case.prompt)
            case.check(verdict or self._compare_patiently(case.gold, answer or ""))
        for case in KNOWN_COMPARISONS:
            case.check(self._compare_patiently(case.gold, case.completion))
        self._trusted = True

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the workers. May be called twice."""
        self._workers.close()

    @staticmethod
    def _judge(answer: str | None, gold: str, prompt: str) -> Verdict | None:
        return UNPARSED if answer is None else judge_by_text(answer, gold, prompt)

    def _compare_now(self, gold: str, answer: str, extra_s: float) -> Verdict:
        job = self._workers.schedule(gold, answer, extra_s)
        ((_, comparison),) = self._workers.results([job])
        return comparison.verdict

    def _compare_patiently(self, gold: str, answer: str) -> Verdict:
        """A busy machine may let a known answer time out, so every try has a second more; a broken
        verifier times out in all of them."""
        verdicts = (self._compare_now(gold, answer, extra) for extra in range(SELF_TEST_TRIES))
        return next((verdict for verdict in verdicts if verdict != TIMEOUT), TIMEOUT)

    def _known_or_scheduled(self, gold: str, answer: str) -> Verdict | Job:
        """The verdict from the cache, else the job that is under way, else a new one."""
        key = (gold, answer)
        known = self._cache.get(key) or self._running.get(key)
        if known is None:
            known = self._running[key] = self._workers.schedule(gold, answer)
        return known

    def _settle(
        self, items: Sequence[Verdict | Job], name: str, progress: bool
    ) -> tuple[list[Verdict], list[float]]:
        """The verdict of every item, and the seconds of every comparison that this waited for."""
        jobs = list({id(item): item for item in items if isinstance(item, Job)}.values())
        done: dict[int, Comparison] = {}
        with tqdm(total=len(jobs), desc=name, delay=2, disable=not progress) as bar:
            for position, comparison in self._workers.results(jobs):
                done[id(jobs[position])] = comparison
                self._remember(jobs[position], comparison.verdict)
                bar.update()
        verdicts = [done[id(item)].verdict if isinstance(item, Job) else item for item in items]
        return verdicts, [done[id(job)].seconds for job in jobs]

    def _remember(self, job: Job, verdict: Verdict) -> None:
        """Keep judgements; a timeout or a crash may be the fault of the moment and is not kept."""
        with self._lock:
            self._running.pop((job.gold, job.answer), None)
            if verdict.status not in ("timeout", "error"):
                self._cache[job.gold, job.answer] = verdict
                if len(self._cache) > CACHE_SIZE:
                    self._cache.popitem(last=False)

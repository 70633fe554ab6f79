"""Answers scored by the task that asked: 1 where the task's own scorer is content, else 0.

The scorers of reasoning-gym give credit to parts of an answer (.07 for "The answer is 3" where 3
is right), so that what is scored is the answer that a reader finds. Several of them evaluate it as
Python: they run in the workers, with a deadline, and where they may neither write files nor start
processes (`confined`). That keeps accidents away; it is no sandbox.
"""

import contextlib
import io
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader
from e3rl.rewards.gym_task import GymTask, read_entry, require_reasoning_gym, write_entry
from e3rl.rewards.known_answers import KnownAnswer
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Begun, Question, Task
from e3rl.rewards.verdict import CORRECT, ERROR, UNPARSED, WRONG, Status, Verdict

CHECKED = 64  # gold answers of each task that its scorer judges before a run
LISTED = 20  # faults that a message shows
# What scorers raise on a text that they cannot read. SystemExit: `exit()`, evaluated.
UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, NameError, ArithmeticError),
    *(SyntaxError, AssertionError, ImportError, OSError, SystemExit),
)
# Events of `sys.audit` that no scoring needs; `open` counts for writing alone.
FORBIDDEN = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.kill"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link"),
    *("os.symlink", "os.putenv", "os.unsetenv", "shutil.rmtree", "shutil.move", "subprocess.Popen"),
    *("socket.__new__", "signal.pthread_kill", "ctypes.dlopen"),
}
# Of thousands; a blank in a mixed number, 3 100/7, is none.
_SEPARATOR = re.compile(r"(?<=\d),(?=\d{3}(?!\d))|(?<=\d) (?=\d{3}(?![\d/]))")


class ReasoningGymScorer:
    """Judges answers by the scorers of reasoning-gym; a `Scorer` for problems of
    `e3rl.data.reasoning_gym`.

    A text at which a task's scorer raises is one that cannot be read, status `unparsed`, unless
    the scorer raises at the gold answer as well: then the fault is not the model's, and it
    propagates.

    Args:
        reader: where the answer stands.
        partial_credit: pay what the scorer gives, from 0 to 1; False pays for 1 alone.
        correct_above: a score above it counts as correct; None: a score of 1 does. For partial
            credit alone.

    Raises ValueError for `correct_above` outside [0, 1) or without partial credit.
    """

    batch_size = 1
    may_not_load = True
    preload: Sequence[str] = ()

    def __init__(
        self,
        reader: AnswerReader,
        partial_credit: bool = False,
        correct_above: float | None = None,
    ) -> None:
        if correct_above is not None and not (partial_credit and 0 <= correct_above < 1):
            raise ValueError(
                f"reward.correct_above={correct_above} with reward.partial_credit="
                f"{partial_credit}: give a number from 0 to below 1, with partial_credit=true"
            )
        self.reader = reader
        self.partial_credit = partial_credit
        self.correct_above = correct_above

    def read(self, completion: str) -> str | None:
        answer = self.reader.read(completion)
        if answer is not None and self.reader.answer_format == "last_number":
            return _SEPARATOR.sub("", answer).replace("−", "-")
        return answer

    def normalize(self, answer: str) -> str:
        return " ".join(answer.split())

    def spell(self, gold: str) -> Mapping[str, str]:
        """The plainest form alone: another spelling of a number is no answer to some tasks."""
        return dict(list(self.reader.spell(gold).items())[:1]) if gold else {}

    def check(self, questions: Iterable[Question]) -> None:
        """Raise ValueError naming the problems that are not of reasoning-gym, those whose gold
        answer cannot be given in the format, and, of the first `CHECKED` of each task, those whose
        gold answer its scorer refuses. Problems without a gold answer are left to the scorer."""
        seen: Counter[str] = Counter()
        faults = []
        for question in questions:
            if fault := self._find_fault(question, seen):
                faults.append(f"problem {question.id}: {fault}")
        if faults:
            listed = "\n".join(f"  - {fault}" for fault in faults[:LISTED])
            more = f"\n  ... and {len(faults) - LISTED} more" if len(faults) > LISTED else ""
            raise ValueError(f"{len(faults)} problems cannot be solved:\n{listed}{more}")

    def begin(self, completion: str, question: Question) -> Begun:
        answer = self.read(completion)
        if answer is None:
            return UNPARSED
        content = (*(question.row[key] for key in ("task", "settings", "entry")), answer)
        return Task(content, content)

    def compare(self, gold: str, answer: str) -> Begun:
        """Equal texts, blanks aside: without the problem nothing more can be said."""
        return CORRECT if self.normalize(gold) == self.normalize(answer) else WRONG

    def prepare(self) -> None:
        """Import reasoning-gym and score a known answer."""
        _score("chain_sum", GymTask("chain_sum").settings, _known_entry("2"), "2")

    def score(self, contents: Sequence[tuple[str, str, str, str]]) -> list[Verdict]:
        return [self._judge(*content) for content in contents]

    def known_answers(self) -> Iterable[tuple[KnownAnswer, Begun]]:
        right, wrong = ("B", "C") if self.reader.answer_format == "choice" else ("46", "47")
        row = {
            "task": "chain_sum",
            "settings": GymTask("chain_sum").settings,
            "entry": _known_entry(right),
        }
        cases: tuple[tuple[str, Status], ...] = ((right, "correct"), (wrong, "wrong"))
        for said, status in cases:
            for completion in self.spell(said).values():
                case = KnownAnswer(status, completion, right, "", status)
                yield case, self.begin(completion, Question("", "", right, row))

    def _find_fault(self, question: Question, seen: Counter[str]) -> str | None:
        """What is wrong with a problem, and the remedy."""
        if "entry" not in question.row:
            return (
                "is not generated by reasoning-gym; use data=reasoning_gym, or another reward for "
                "these problems"
            )
        plainest = next(iter(self.spell(question.answer).values()), None)
        if not question.answer or plainest is None:
            return None
        answer = self.read(plainest)
        if answer is None:
            return (
                f"gold answer {question.answer!r} cannot be given as "
                f"{self.reader.answer_format}; set reward.answer_format=answer_tags"
            )
        task, settings, entry = (question.row[key] for key in ("task", "settings", "entry"))
        seen[task] += 1
        if seen[task] > CHECKED or _score(task, settings, entry, answer) >= 1:
            return None
        return (
            f"gold answer {question.answer!r}, read as {answer!r}, is refused by task {task}; "
            "leave the task out, or set another reward.answer_format"
        )

    def _judge(self, task: str, settings: str, entry: str, answer: str) -> Verdict:
        try:
            score = _score(task, settings, entry, answer)
        except UNREADABLE:
            _score(task, settings, entry, read_entry(entry)["answer"])
            return UNPARSED
        except RecursionError:
            return ERROR
        if not self.partial_credit:
            return CORRECT if score >= 1 else WRONG
        right = score >= 1 if self.correct_above is None else score > self.correct_above
        return Verdict(score, "correct" if right else "wrong")


def build_reasoning_gym_rewards(
    answer_format: AnswerFormat = "last_number",
    answer_pattern: str | None = None,
    partial_credit: bool = False,
    correct_above: float | None = None,
    workers: int = 2,
    deadline_s: float = 5.0,
    memory_limit_mb: int = 2048,
    max_answer_chars: int = 10_000,
) -> RewardPool:
    """A pool that pays what the scorers of reasoning-gym give.

    Args:
        answer_format, answer_pattern, max_answer_chars: see `AnswerReader`.
        partial_credit, correct_above: see `ReasoningGymScorer`.
        workers, deadline_s, memory_limit_mb: see `RewardPool`.

    Raises ModuleNotFoundError where reasoning-gym is not installed.
    """
    require_reasoning_gym()
    reader = AnswerReader(answer_format, answer_pattern, max_answer_chars)
    scorer = ReasoningGymScorer(reader, partial_credit, correct_above)
    return RewardPool(scorer, workers, deadline_s, memory_limit_mb)


@contextlib.contextmanager
def confined() -> Iterator[None]:
    """Within it this process may neither write files, nor start processes, nor open sockets.

    Code that goes out of its way (through C, say) can.
    """
    guard = _guard()
    guard["active"] = True
    try:
        yield
    finally:
        guard["active"] = False


@cache
def _guard() -> dict[str, bool]:
    """The switch of an audit hook, which cannot be removed once it is there."""
    state = {"active": False}

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if state["active"] and (event in FORBIDDEN or (event == "open" and _writes(args))):
            raise PermissionError(f"an answer that is being scored may not do this: {event}")

    sys.addaudithook(refuse)
    return state


def _writes(args: tuple[Any, ...]) -> bool:
    mode, flags = args[1], args[2]
    return bool(set(mode) & set("wax+")) if mode else bool(flags & 3)  # O_WRONLY, O_RDWR


@cache
def _dataset(task: str, settings: str) -> Any:
    return GymTask(task, **json.loads(settings)).dataset()


def _score(task: str, settings: str, entry: str, answer: str | None) -> float:
    """What the task's scorer gives, from 0 to 1, without what it prints and warns of."""
    dataset, known = _dataset(task, settings), read_entry(entry)
    with confined(), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(dataset.score_answer(answer, known))


def _known_entry(gold: str) -> str:
    return write_entry({"question": "", "answer": gold, "metadata": {}})

"""`Scorer`: the seam between completions and what they earn.

Boxed mathematics, tasks that bring a scorer along and functions of the user stand behind it. A
scorer decides at once, in the trainer's process, what costs no time, and names a `Task` for what a
worker is to judge; `e3rl.rewards.pool.RewardPool` owns the workers, the order and the deadline.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from e3rl.rewards.known_answers import KnownAnswer
from e3rl.rewards.verdict import Verdict


@dataclass(frozen=True)
class Question:
    """What a scorer may know of a problem besides the completion.

    `prompt` is the rendered prompt, `answer` the gold answer, `row` holds source and level, and the
    further columns of the problem's file, or what a generator says of the problem.
    """

    id: str
    prompt: str
    answer: str
    row: Mapping[str, Any] = field(default_factory=dict)


def make_question(
    problem_id: str,
    prompt: str,
    answer: str,
    source: str,
    level: int | None,
    row: Mapping[str, Any],
) -> Question:
    """A question whose row has the problem's source and level beside its own columns."""
    return Question(problem_id, prompt, answer, {"source": source, "level": level} | dict(row))


@dataclass(frozen=True)
class Task:
    """Something for a worker to judge.

    Equal keys have equal verdicts: a task whose verdict is known is not judged again. `content` is
    what the worker gets. Tasks of one `group` whose texts begin alike may be taken for ones of a
    kind where they hang; without a text none is.
    """

    key: Hashable
    content: Any = field(compare=False)
    group: Hashable = field(default=None, compare=False)
    text: str = field(default="", compare=False)

    def describe(self) -> str:
        """What is said of a task that raised, one line or several."""
        return repr(self.content)


Begun = Verdict | Task


class Scorer(Protocol):
    """Judges completions. One object per run, which is pickled into every worker.

    `batch_size` is how many tasks a worker gets at a time, 1 unless judging many together is
    cheaper; `may_not_load` whether `prepare` runs code that is not e3rl's; `preload` names modules
    that are loaded once, before workers are forked.
    """

    batch_size: int
    preload: Sequence[str]
    may_not_load: bool

    def read(self, completion: str) -> str | None:
        """The answer as it is written there; None where the completion has none."""

    def normalize(self, answer: str) -> str:
        """The answer in one spelling; equal texts are equal answers."""

    def spell(self, gold: str) -> Mapping[str, str]:
        """Completions that answer with the gold answer, by the name of the spelling, the plainest
        first; none where only the scorer's author knows one."""

    def check(self, questions: Iterable[Question]) -> None:
        """Raise ValueError naming every problem that no completion could solve, and whatever else
        can be known before a run."""

    def begin(self, completion: str, question: Question) -> Begun:
        """The verdict where it is known at once, else the task for a worker."""

    def compare(self, gold: str, answer: str) -> Begun:
        """Whether two answers that `read` has returned are equal, the first one as the gold."""

    def prepare(self) -> None:
        """Load what judging needs; runs in a worker when it starts. What it raises ends the run."""

    def score(self, contents: Sequence[Any]) -> Sequence[Verdict]:
        """Verdicts of tasks, by their contents; runs in a worker."""

    def known_answers(self) -> Iterable[tuple[KnownAnswer, Begun]]:
        """What has to be judged right before a run may start."""

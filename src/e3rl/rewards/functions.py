"""Rewards that are functions of the user: a file of five lines, or anything importable.

    def score(completion, answer, **row):
        return float(re.findall(r"\\d+", completion)[-1:] == [answer])

They run in the workers of a `RewardPool`, never in the trainer's process. What they raise stops
the run, with the completion and the row that they were given.
"""

import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Any

from e3rl.rewards.answer_formats import normal_form
from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader
from e3rl.rewards.known_answers import KnownAnswer
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Begun, Question, Task
from e3rl.rewards.verdict import CORRECT, WRONG, Verdict
from e3rl.seeds import derive_seed

GIVEN = ("prompt", "problem_id")  # what a function may ask for besides the columns of the row
SHOWN = 400  # letters of a completion in messages


@dataclass(frozen=True)
class Score:
    """What a reward function returns where a number does not say enough.

    `correct` is whether the completion counts as right in accuracies, pass@k and budgets; None
    leaves that to `reward.correct_above`. `parts` are logged by name.
    """

    reward: float
    correct: bool | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RewardFunction:
    """A function by its path, and what its reward counts for.

    Args:
        path: `file.py:name`, relative to the working directory, or `package.module.name`.
        weight: factor of its reward in the sum, finite.
        batched: called once with lists: `score(completions, answers, **row)`, where every entry
            of `row` is a list too, returning one reward for each completion.

    Raises ValueError for a path of another form or to a file that is not there, and for a weight
    that is not finite.
    """

    path: str
    weight: float = 1.0
    batched: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.weight):
            raise ValueError(f"reward.functions: weight={self.weight} of {self.path} is not finite")
        file, separator, name = self.path.rpartition(":")
        if not separator:
            if "." not in self.path:
                raise ValueError(
                    f"reward.path={self.path!r}: give FILE.py:FUNCTION or package.module.FUNCTION"
                )
        elif not name.isidentifier():
            raise ValueError(f"reward.path={self.path!r}: {name!r} is no name of a function")
        elif not Path(file).is_file():
            raise ValueError(
                f"reward.path={self.path!r}: there is no file {Path(file).absolute()}; correct the "
                "path, or give an absolute one"
            )
        else:
            object.__setattr__(self, "path", f"{Path(file).absolute()}:{name}")

    @property
    def name(self) -> str:
        return self.path.rpartition(":" if ":" in self.path else ".")[2]

    def load(self) -> Callable[..., Any]:
        """The function itself.

        Raises ValueError where the file has none of this name, and whatever the file raises.
        """
        place, _, name = self.path.rpartition(":" if ":" in self.path else ".")
        if ":" in self.path:
            unique = f"{Path(place).stem}_{derive_seed('reward', place):x}"
            spec = importlib.util.spec_from_file_location(unique, place)
            if spec is None or spec.loader is None:
                raise ValueError(f"reward.path={self.path!r}: {place} is no Python file")
            module = importlib.util.module_from_spec(spec)
            with _registered(module):
                spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        function = getattr(module, name, None)
        if not callable(function):
            raise ValueError(f"reward.path={self.path!r}: {place} has no function {name}")
        found: Callable[..., Any] = function
        return found


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Let a file be found by its name while it runs and from then on, as its dataclasses need."""
    sys.modules[module.__name__], ran = module, False
    try:
        yield
        ran = True
    finally:
        if not ran:
            del sys.modules[module.__name__]


class FunctionScorer:
    """Pays the weighted sum of what functions return; a `Scorer`.

    Every function gets the completion, the gold answer, and by name those of `prompt`,
    `problem_id` and the columns of the problem's row that its signature has; all of them where it
    takes `**row`.

    A completion is correct where the functions say so by `Score.correct` (all that say anything
    must), else where the deciding reward is above `correct_above`; without that the deciding
    reward must be 0 or 1.

    Args:
        functions: by the name that their part of the reward is logged under.
        reader: finds the answer that tables show and majorities are counted over.
        correct_above: threshold of the deciding reward.
        correct_from: name of the function whose reward decides; None = the weighted sum.
        batch_size: completions that a batched function gets at a time.

    Raises ValueError without functions, and for a `correct_from` that is none of them.
    """

    may_not_load = True
    preload: Sequence[str] = ()

    def __init__(
        self,
        functions: Mapping[str, RewardFunction],
        reader: AnswerReader,
        correct_above: float | None = None,
        correct_from: str | None = None,
        batch_size: int = 1,
    ) -> None:
        if not functions:
            raise ValueError(
                "reward=function needs reward.path=FILE.py:FUNCTION, or several in reward.functions"
            )
        if correct_from is not None and correct_from not in functions:
            raise ValueError(
                f"reward.correct_from={correct_from!r} is none of the functions: "
                + ", ".join(functions)
            )
        if batch_size < 1:
            raise ValueError(f"reward.batch_size={batch_size}; it must be at least 1")
        self.functions = dict(functions)
        self.reader = reader
        self.correct_above = correct_above
        self.correct_from = correct_from
        self.batch_size = batch_size
        self._columns: frozenset[str] | None = None  # that every problem has, once known
        self._loaded: dict[str, Callable[..., Any]] = {}  # in a worker

    def read(self, completion: str) -> str | None:
        return self.reader.read(completion)

    def normalize(self, answer: str) -> str:
        return normal_form(answer)

    def spell(self, gold: str) -> Mapping[str, str]:
        """None: what a function pays for, only it knows."""
        return {}

    def check(self, questions: Iterable[Question]) -> None:
        """Remember the columns that all problems have; workers compare them with signatures."""
        rows = [frozenset(question.row) for question in questions]
        self._columns = frozenset.intersection(*rows) if rows else frozenset()

    def begin(self, completion: str, question: Question) -> Begun:
        # Of several sets the ids may be alike, and of one question the rows may not.
        key = question.id, question.prompt, question.answer, repr(question.row), completion
        return FunctionTask(key, (completion, question))

    def compare(self, gold: str, answer: str) -> Begun:
        return CORRECT if normal_form(gold) == normal_form(answer) else WRONG

    def prepare(self) -> None:
        """Load the functions; raises ValueError where one wants a column that problems lack."""
        self._loaded = {name: function.load() for name, function in self.functions.items()}
        for name, loaded in self._loaded.items():
            self._check_signature(name, loaded)

    def score(self, contents: Sequence[tuple[str, Question]]) -> list[Verdict]:
        returned = {name: self._call(name, contents) for name in self.functions}
        return [
            self._sum_up({name: scores[i] for name, scores in returned.items()})
            for i in range(len(contents))
        ]

    def known_answers(self) -> Iterable[tuple[KnownAnswer, Begun]]:
        """None: what a function pays for, only it knows."""
        return ()

    def _check_signature(self, name: str, function: Callable[..., Any]) -> None:
        if self._columns is None:
            return
        known = {*self._columns, *GIVEN}
        parameters = list(inspect.signature(function).parameters.values())[2:]
        missing = [
            p.name
            for p in parameters
            if p.default is p.empty
            and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            and p.name not in known
        ]
        if missing:
            raise ValueError(
                f"reward function {name} ({self.functions[name].path}) wants "
                f"{', '.join(missing)}, which not every problem has; there are "
                f"{', '.join(sorted(known))}: add the column to the problem file, or give the "
                "parameter a default"
            )

    def _call(self, name: str, contents: Sequence[tuple[str, Question]]) -> list[Score]:
        """What a function returns for every completion."""
        if not self.functions[name].batched:
            return [
                self._as_score(name, self._ask(name, completion, question.answer, _row(question)))
                for completion, question in contents
            ]
        rows = [_row(question) for _, question in contents]
        columns = {
            key: [row.get(key) for row in rows] for key in dict.fromkeys(k for r in rows for k in r)
        }
        answers = [question.answer for _, question in contents]
        returned = list(self._ask(name, [text for text, _ in contents], answers, columns))
        if len(returned) != len(contents):
            raise ValueError(
                f"reward function {name} returned {len(returned)} rewards for {len(contents)} "
                "completions; a batched one returns one for each"
            )
        return [self._as_score(name, value) for value in returned]

    def _ask(self, name: str, completion: Any, answer: Any, row: Mapping[str, Any]) -> Any:
        """Columns of a problem that are named as the two that every function is given stay out."""
        function = self._loaded[name]
        parameters = list(inspect.signature(function).parameters.values())
        given, further = ({p.name for p in some} for some in (parameters[:2], parameters[2:]))
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        wanted = set(row) - given if takes_all else set(row) & further
        return function(completion, answer, **{key: row[key] for key in row if key in wanted})

    def _as_score(self, name: str, value: Any) -> Score:
        """What a function returned, checked."""
        score = value if isinstance(value, Score) else None
        reward: Any = score.reward if score else value
        if getattr(reward, "ndim", None) == 0:  # a scalar of numpy or torch, perhaps no Real
            reward = reward.item()
        if not isinstance(reward, Real) or not math.isfinite(reward):
            raise TypeError(
                f"reward function {name} returned {value!r}: return a finite number, or an "
                "e3rl.rewards.functions.Score"
            )
        if score and not (score.correct is None or score.correct in (False, True)):
            raise TypeError(
                f"reward function {name} returned Score(correct={score.correct!r}): give True, "
                "False, or None"
            )
        return score or Score(float(reward))

    def _sum_up(self, scores: Mapping[str, Score]) -> Verdict:
        reward = math.fsum(
            self.functions[name].weight * float(score.reward) for name, score in scores.items()
        )
        right = self._is_correct(reward, scores)
        parts = {key: float(x) for score in scores.values() for key, x in score.parts.items()}
        if len(scores) > 1:
            parts |= {name: float(score.reward) for name, score in scores.items()}
        return Verdict(reward, "correct" if right else "wrong", parts=parts)

    def _is_correct(self, reward: float, scores: Mapping[str, Score]) -> bool:
        if self.correct_from is not None:
            scores = {self.correct_from: scores[self.correct_from]}
            reward = float(scores[self.correct_from].reward)
        said = [score.correct for score in scores.values() if score.correct is not None]
        if said:
            return all(said)
        if self.correct_above is not None:
            return reward > self.correct_above
        if reward not in (0.0, 1.0):
            raise ValueError(
                f"a completion earned {reward:g}, which is neither 0 nor 1: say what counts as "
                "correct by reward.correct_above=NUMBER (with several functions also "
                "reward.correct_from=NAME), or return an e3rl.rewards.functions.Score"
            )
        return reward == 1.0


class FunctionTask(Task):
    """A completion and its question."""

    def describe(self) -> str:
        completion, question = self.content
        shown = completion if len(completion) <= SHOWN else f"{completion[:SHOWN]}..."
        row = ", ".join(f"{key}={value!r}" for key, value in question.row.items())
        return (
            f"a completion of problem {question.id}\n  completion: {shown!r}\n"
            f"  answer: {question.answer!r}\n  row: {row or 'no further columns'}"
        )


def build_function_rewards(
    path: str | None = None,
    functions: Mapping[str, Mapping[str, Any]] | None = None,
    correct_above: float | None = None,
    correct_from: str | None = None,
    answer_format: AnswerFormat = "completion",
    answer_pattern: str | None = None,
    batch_size: int = 16,
    workers: int = 2,
    deadline_s: float = 5.0,
    memory_limit_mb: int = 2048,
    max_answer_chars: int | None = None,
) -> RewardPool:
    """A pool that pays what functions of the user return.

    Args:
        path: of one function, see `RewardFunction`.
        functions: several, by name, each with `path`, `weight` and `batched`.
        correct_above, correct_from: see `FunctionScorer`.
        answer_format, answer_pattern: see `AnswerReader`.
        max_answer_chars: see `AnswerReader`; None: 10,000, of completions any number, since a
            function is paid for by whole ones.
        batch_size: completions that a batched function gets at a time.
        workers, deadline_s, memory_limit_mb: see `RewardPool`.

    Raises ValueError as `RewardFunction` and `FunctionScorer` do, and for both of `path` and
    `functions`.
    """
    if path is not None and functions:
        raise ValueError("give either reward.path or reward.functions, not both")
    single = [] if path is None else [RewardFunction(path)]
    named = {function.name: function for function in single}
    named |= {name: RewardFunction(**settings) for name, settings in (functions or {}).items()}
    is_batched = any(function.batched for function in named.values())
    most = sys.maxsize if answer_format == "completion" else 10_000
    longest = most if max_answer_chars is None else max_answer_chars
    reader = AnswerReader(answer_format, answer_pattern, longest)
    scorer = FunctionScorer(
        named, reader, correct_above, correct_from, batch_size if is_batched else 1
    )
    return RewardPool(scorer, workers, deadline_s, memory_limit_mb)


def _row(question: Question) -> dict[str, Any]:
    """What a function may be given by name; a column of the file has precedence."""
    return {"prompt": question.prompt, "problem_id": question.id} | dict(question.row)

"""What a problem asks, in one spelling: to find a question again in the same set or another one."""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from e3rl.data.problem import Problem
from e3rl.rewards.answer_formats import plain, same_number, same_text

_ENDING = re.compile(r"[.,;:?]+(?=\s|$)")
_START = re.compile(r"(?:^|(?<=[.?!:] ))[^\w$\\]*[^\W\d_]")  # of a sentence
_MATH = re.compile(r"(?<!\\)\$\$?(.+?)(?<!\\)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]")
# The groups are blanks that stay: in mathematics those between digits, behind the name of a
# command and behind punctuation; in words those between letters and digits.
_IN_MATH = re.compile(r"(\\[a-zA-Z]+ (?=[a-zA-Z])|\d (?=\.?\d))|[.,;:?]+(?:( )|$)| ")
_IN_WORDS = re.compile(r"(\w (?=\.?\w))| ")
_COMPATIBLE = {"<super>": "^", "<sub>": "_", "<fraction>": " "}

REPEATED = "repeated question"
CONTRADICTED = "question with several answers"


def question_text(problem: Problem) -> str:
    """What is asked, whatever its form: without system messages, blanks collapsed."""
    if isinstance(problem.prompt, str):
        return " ".join(problem.prompt.split())
    asked = [m["content"] for m in problem.prompt if m["role"] not in ("system", "developer")]
    return " ".join(" ".join(asked).split())


def question_key(problem: Problem) -> str:
    r"""The question without `$`, layout commands, capitals at the start of a sentence, punctuation
    before a blank, and blanks that mean nothing.

    Two problems with the same key ask the same (`\dfrac12` is `\frac{1}{2}`, `×` is `\times`);
    nothing is said about two with different keys. Blanks mean something between digits (`1 23` is
    not `12 3`) and, outside `$...$`, between words.
    """
    text = _START.sub(lambda start: start[0].casefold(), question_text(problem))
    text = unicodedata.normalize("NFKC", "".join(map(_raised, text)))
    text = _MATH.sub(lambda math: _IN_MATH.sub(r"\1\2", plain(math[0])), text)
    return _IN_WORDS.sub(r"\1", plain(_ENDING.sub("", text))) or text


def _raised(letter: str) -> str:
    """The letter, with what tells `x²` from `x2`."""
    return _COMPATIBLE.get(unicodedata.decomposition(letter).split(" ")[0], "") + letter


def group_by_question(problems: Iterable[Problem]) -> dict[str, list[Problem]]:
    """The problems that share a `question_key`, in order, under that key."""
    groups: dict[str, list[Problem]] = {}
    for problem in problems:
        groups.setdefault(question_key(problem), []).append(problem)
    return groups


def have_same_answer(problems: Sequence[Problem]) -> bool:
    """Whether all gold answers are written alike, up to layout, spelling and units."""
    first = problems[0].answer
    return all(same_text(p.answer, first) or same_number(p.answer, first) for p in problems)


def find_superfluous(problems: Iterable[Problem]) -> dict[str, str]:
    """Id -> reason of the problems to drop for every question to be asked once.

    Of equal problems the first stays. Where answers contradict each other none does, since no
    reward for that question could be trusted.
    """
    reasons: dict[str, str] = {}
    for group in group_by_question(problems).values():
        if not have_same_answer(group):
            reasons |= dict.fromkeys((p.id for p in group), CONTRADICTED)
        else:
            reasons |= dict.fromkeys((p.id for p in group[1:]), REPEATED)
    return reasons


def strip_wrapping(problems: Mapping[int, Problem], wrapping: Sequence[str]) -> dict[int, Problem]:
    """The problems without the fixed texts that a file puts before or behind every question.

    Raises ValueError for a text that no question begins or ends with.
    """
    found: set[str] = set()
    bare = {row: _unwrapped(problem, wrapping, found) for row, problem in problems.items()}
    missing = [text for text in wrapping if text not in found]
    if problems and missing:
        raise ValueError(
            f"no question begins or ends with {missing[0]!r}: correct strip, blanks and line ends "
            "included"
        )
    return bare


def _unwrapped(problem: Problem, wrapping: Sequence[str], found: set[str]) -> Problem:
    prompt = problem.prompt
    text = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    for fixed in wrapping:
        if text.startswith(fixed) or text.endswith(fixed):
            found.add(fixed)
            text = text.removeprefix(fixed).removesuffix(fixed)
    if isinstance(prompt, str):
        return replace(problem, prompt=text)
    return replace(problem, prompt=(*prompt[:-1], {**prompt[-1], "content": text}))

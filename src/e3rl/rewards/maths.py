"""Mathematical answers, and letters of a choice: 1 where the answer is the gold answer, else 0."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from e3rl.rewards.answer_formats import INTEGER, normal_form
from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader
from e3rl.rewards.golds import check_golds
from e3rl.rewards.known_answers import KNOWN_COMPARISONS, KNOWN_COMPLETIONS, KnownAnswer
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Begun, Question, Task
from e3rl.rewards.size import measure_size
from e3rl.rewards.verdict import CORRECT, UNPARSED, WRONG, Verdict
from e3rl.rewards.verifier import can_be_matched, compare_answers, is_constant, judge_by_text

Compare = Callable[[str, str], Verdict]  # (gold, answer)
MARK = "####"  # between derivation and answer in GSM8K and its likes


class MathScorer:
    """Compares the answer that a reader finds with the gold answer; a `Scorer`.

    The format is checked, integers are compared and restated questions rejected at once; what text
    leaves open is compared by `compare` in a worker, unless it is too large to be worked out (see
    `e3rl.rewards.size`): such an answer is unread, and one to such a gold answer is wrong unless it
    is written like it. Of a choice the letters are compared.

    Args:
        reader: where the answer stands.
        compare: (gold, answer) -> Verdict, an importable function.
    """

    batch_size = 1
    may_not_load = False
    preload: Sequence[str] = ("e3rl.rewards.warm_maths",)

    def __init__(self, reader: AnswerReader, compare: Compare = compare_answers) -> None:
        self.reader = reader
        self._compare = compare

    def read(self, completion: str) -> str | None:
        return self.reader.read(completion)

    def normalize(self, answer: str) -> str:
        return normal_form(answer)

    def spell(self, gold: str) -> Mapping[str, str]:
        return self.reader.spell(gold)

    def check(self, questions: Iterable[Question]) -> None:
        """Raise UnmatchableGoldsError naming the problems whose gold answer nothing could match."""
        check_golds(questions, self._find_fault)

    def begin(self, completion: str, question: Question) -> Begun:
        answer = self.read(completion)
        if answer is None:
            return UNPARSED
        return self._begin(question.answer, answer, question.prompt)

    def compare(self, gold: str, answer: str) -> Begun:
        return self._begin(gold, answer, "")

    def prepare(self) -> None:
        """Warm math-verify up."""
        for gold, answer in ((r"\frac{1}{2}", "0.5"), (r"\sqrt{2}+1", r"1+\sqrt{2}")):
            compare_answers(gold, answer)

    def score(self, contents: Sequence[tuple[str, str]]) -> list[Verdict]:
        return [self._compare(gold, answer) for gold, answer in contents]

    def known_answers(self) -> Iterable[tuple[KnownAnswer, Begun]]:
        for case in KNOWN_COMPLETIONS.get(self.reader.answer_format, ()):
            yield case, self.begin(case.completion, Question("", case.prompt, case.gold))
        for case in KNOWN_COMPARISONS:
            yield case, _task(case.gold, case.completion)

    def _begin(self, gold: str, answer: str, prompt: str) -> Begun:
        if self.reader.answer_format == "choice":
            return CORRECT if _letter(gold) == _letter(answer) else WRONG
        if (verdict := judge_by_text(answer, gold, prompt)) is not None:
            return verdict
        if not measure_size(gold).fits:
            return WRONG
        return _task(gold, answer) if measure_size(answer).fits else UNPARSED

    def _find_fault(self, gold: str) -> str | None:
        if MARK in gold:
            return (
                f'has a derivation before {MARK}; set answer_after="{MARK}" for this problem set '
                "(data.train.answer_after of problem files)"
            )
        if self.reader.answer_format == "integer_box" and not INTEGER.fullmatch(gold.strip()):
            return (
                "is not an integer; correct it, or set answer_format=math_box for this problem set"
            )
        if self.reader.answer_format == "choice":
            letter = _letter(gold)
            if len(letter) == 1 and letter.isascii() and letter.isalpha():
                return None
            return "is not a letter; correct it, or choose another answer_format"
        if fault := self._find_unread(gold):
            return fault
        if self.reader.answer_format == "integer_box" or not measure_size(gold).fits:
            return None
        return None if can_be_matched(gold) else "cannot be parsed; correct or drop it"

    def _find_unread(self, gold: str) -> str | None:
        """What is wrong with a gold answer that the reader finds in no completion."""
        length = min(len(gold.strip()), len(normal_form(gold)))
        if length > self.reader.max_chars:
            return (
                f"has {length} characters, and answers of more than {self.reader.max_chars} are "
                "not read; correct or drop it, or raise reward.max_answer_chars"
            )
        numbers_alone = self.reader.answer_format == "last_number"
        if numbers_alone and self.read(gold) is None and not is_constant(gold):
            return (
                "is no number, as answer_format=last_number reads; drop it, or take another reward"
            )
        return None


def build_math_rewards(
    answer_format: AnswerFormat = "integer_box",
    workers: int = 2,
    deadline_s: float = 1.0,
    memory_limit_mb: int = 2048,
    max_answer_chars: int = 300,
    answer_pattern: str | None = None,
    compare: Compare = compare_answers,
) -> RewardPool:
    """A pool that pays 1 for an answer that equals the gold answer, else 0.

    Args:
        answer_format, answer_pattern, max_answer_chars: see `AnswerReader`.
        workers, deadline_s, memory_limit_mb: see `RewardPool`.
        compare: (gold, answer) -> Verdict, an importable function; what it raises, `collect` does.
    """
    reader = AnswerReader(answer_format, answer_pattern, max_answer_chars)
    return RewardPool(MathScorer(reader, compare), workers, deadline_s, memory_limit_mb)


def _task(gold: str, answer: str) -> Task:
    return Task((gold, answer), (gold, answer), group=gold, text=answer)


def _letter(text: str) -> str:
    return text.strip().strip("().").strip().upper()

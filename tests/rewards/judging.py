"""Judging in this process, without workers and deadlines."""

from collections.abc import Iterable

from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader
from e3rl.rewards.maths import MathScorer
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import Verdict


def verify_answer(completion: str, gold: str, prompt: str, answer_format: AnswerFormat) -> Verdict:
    scorer = MathScorer(AnswerReader(answer_format))
    begun = scorer.begin(completion, Question("", prompt, gold))
    return begun if isinstance(begun, Verdict) else scorer.score([begun.content])[0]


def check_golds(answers: Iterable[tuple[str, str]], answer_format: AnswerFormat) -> None:
    questions = [Question(problem_id, "", gold) for problem_id, gold in answers]
    MathScorer(AnswerReader(answer_format)).check(questions)


def check_gold(gold: str, answer_format: AnswerFormat, problem_id: str) -> None:
    check_golds([(problem_id, gold)], answer_format)


def read_answer(completion: str, answer_format: AnswerFormat, max_chars: int) -> str | None:
    return AnswerReader(answer_format, max_chars=max_chars).read(completion)

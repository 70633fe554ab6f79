"""Checking every gold answer before a run: one that nothing can match teaches nothing."""

from collections.abc import Iterable

from e3rl.rewards.answer_formats import AnswerFormat
from e3rl.rewards.verifier import check_gold

SHOWN = 20  # faults that the message lists


class UnmatchableGoldsError(ValueError):
    """Gold answers that no completion could match, all in one message."""


def check_golds(answers: Iterable[tuple[str, str]], answer_format: AnswerFormat) -> None:
    """Raise one UnmatchableGoldsError naming the problems whose gold answer nothing could match.

    `answers` are (problem id, gold answer) pairs; equal answers are parsed once.
    """
    first = {answer: problem_id for problem_id, answer in reversed(list(answers))}
    faults = []
    for answer, problem_id in first.items():
        try:
            check_gold(answer, answer_format, problem_id)
        except ValueError as fault:
            faults.append(str(fault))
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in sorted(faults)[:SHOWN])
        more = f"\n  ... and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise UnmatchableGoldsError(
            f"{len(faults)} gold answers cannot be matched:\n{listed}{more}"
        )

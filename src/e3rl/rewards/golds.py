"""Checking every gold answer before a run: one that nothing can match teaches nothing."""

from collections.abc import Callable, Iterable

from e3rl.rewards.scorer import Question

SHOWN = 20  # faults that the message lists
LONGEST = 100  # letters of a gold answer in it


class UnmatchableGoldsError(ValueError):
    """Gold answers that no completion could match, all in one message."""


def check_golds(questions: Iterable[Question], find_fault: Callable[[str], str | None]) -> None:
    """Raise one UnmatchableGoldsError naming the problems whose gold answer nothing could match.

    `find_fault` says of a gold answer what is wrong with it, and how to repair it; equal answers
    are looked at once.
    """
    first = {question.answer: question.id for question in reversed(list(questions))}
    found = ((problem_id, answer, find_fault(answer)) for answer, problem_id in first.items())
    faults = [
        f"problem {key}: gold answer {_shortened(gold)!r} {fault}"
        for key, gold, fault in found
        if fault
    ]
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in sorted(faults)[:SHOWN])
        more = f"\n  ... and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
        raise UnmatchableGoldsError(
            f"{len(faults)} gold answers cannot be matched:\n{listed}{more}"
        )


def _shortened(gold: str) -> str:
    return gold if len(gold) <= LONGEST else f"{gold[:LONGEST]}..."

"""Whether an answer equals the gold answer. The only file that knows math-verify.

Text rules come first (`judge_by_text`); what they leave open is compared by math-verify's
`verify(gold, answer)`, in this order, since it is not symmetric (`compare_answers`). Its own time
limits are switched off: they are alarms (main thread only, whole seconds, and they cancel the
caller's). `e3rl.rewards.pool` compares in processes that it can kill.
"""

import logging
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from e3rl.rewards.answer_formats import (
    INTEGER,
    bare_latex,
    ends_in_number,
    is_copied,
    is_number,
    same_number,
    same_text,
)
from e3rl.rewards.verdict import CORRECT, ERROR, UNPARSED, WRONG, Verdict

# math-verify warns once per process that its alarms are off, which is what is wanted here.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# Without the search for bare expressions: a number that stands in a text is not its answer.
EXTRACTION = (LatexExtractionConfig(),)


def judge_by_text(answer: str, gold: str, prompt: str) -> Verdict | None:
    """The verdict where the text alone decides it, else None.

    Integers are compared as integers and an answer written like the gold is right, units aside;
    that is what `compare_answers` finds too, a thousand times slower. A restated question is
    wrong, which `compare_answers` would not notice (see `e3rl.rewards.answer_formats`).
    """
    if INTEGER.fullmatch(answer) and INTEGER.fullmatch(gold.strip()):
        return CORRECT if int(answer) == int(gold) else WRONG
    if same_text(answer, gold) or same_number(answer, gold):
        return CORRECT
    if is_number(gold) and not ends_in_number(answer):
        return WRONG
    return WRONG if is_copied(answer, prompt) else None


def compare_answers(gold: str, answer: str) -> Verdict:
    """Whether math-verify finds the answer equal to the gold.

    Hostile answers (towers of powers, factorials of factorials) make this hang, run out of memory
    or crash the process. Running out of memory or stack is a verdict; errors of other kinds that
    sympy meets on odd input are answers to math-verify, not equal; ours propagate.
    """
    try:
        forms = _parse(answer)
        equal = verify(_parse(gold), forms, timeout_seconds=None)
    except (MemoryError, RecursionError):
        return ERROR
    if equal:
        return CORRECT
    # math-verify hands back the bare text where it could not read an expression.
    return UNPARSED if all(isinstance(form, str) for form in forms) else WRONG


def can_be_matched(gold: str) -> bool:
    """Whether math-verify can read a gold answer, if only as text."""
    return bool(_parse(gold))


def _parse(text: str) -> list[Any]:
    """Math-verify's readings of one LaTeX answer, best first; empty where there is none."""
    forms: list[Any] = parse(
        f"${bare_latex(text)}$", extraction_config=EXTRACTION, parsing_timeout=None
    )
    return forms

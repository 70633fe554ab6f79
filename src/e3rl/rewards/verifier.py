"""Whether an answer equals the gold answer. With its parser, the only file that knows math-verify.

Text rules come first (`judge_by_text`); what they leave open is compared by math-verify's
`verify(gold, answer)`, in this order, since it is not symmetric (`compare_answers`). Its own time
limits are switched off: they are alarms (main thread only, whole seconds, and they cancel the
caller's). `e3rl.rewards.pool` compares in processes that it can kill.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from e3rl.rewards.answer_formats import (
    INTEGER,
    bare_latex,
    compact,
    ends_in_number,
    equated_numbers,
    have_other_order,
    have_other_units,
    is_code,
    is_copied,
    is_number,
    lacks_equation,
    leaves_work,
    normal_form,
    pair_values,
    plain,
    same_number,
    same_text,
    set_words_apart,
    shortest_integer,
)
from e3rl.rewards.latex_parser import install
from e3rl.rewards.refutation import are_different, are_far_apart
from e3rl.rewards.verdict import CORRECT, ERROR, UNPARSED, WRONG, Verdict
from e3rl.rewards.wording import (
    have_other_bases,
    have_other_words,
    restates_number,
    same_repeating,
    same_words,
)

# math-verify warns once per process that its alarms are off, which is what is wanted here.
logging.getLogger("math_verify").setLevel(logging.ERROR)

install()

# Without the search for bare expressions: a number that stands in a text is not its answer.
EXTRACTION = (LatexExtractionConfig(),)

GOLDS = 1024  # gold answers whose readings are kept

_EXPONENT = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,3})(?![\w.])", re.ASCII)
_ANGLE = re.compile(r"(?<![\d.}])(\d+(?:\.\d+)?) ?(?:\^ ?\{? ?\\circ ?\}?|°)", re.ASCII)
_TRIGONOMETRIC = re.compile(r"\\(?:arc)?(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])")
_DECIMALS = re.compile(r"(?<=\.)\d+", re.ASCII)


def judge_by_text(answer: str, gold: str, prompt: str) -> Verdict | None:
    """The verdict where the text alone decides it, else None.

    Integers are compared as integers and an answer written like the gold is right, units aside;
    that is what `compare_answers` finds too, a thousand times slower. Right as well are the gold's
    words in other capitals, and a repeating decimal for its fraction or the other way round, unless
    it stands in the prompt. A restated question is wrong, and so are a unit or a base other than
    the gold's, words that make another number of it, letters in another order and the value of one
    side of an equation that is asked for, which `compare_answers` would not notice, calls of
    functions of a programming language, and what leaves a limit or an integral to it (see
    `e3rl.rewards.answer_formats` and `e3rl.rewards.wording`).
    """
    if INTEGER.fullmatch(answer) and INTEGER.fullmatch(gold.strip()):
        same = shortest_integer(answer) == shortest_integer(gold.strip())
        return CORRECT if same else WRONG
    forms = normal_form(answer), normal_form(gold)
    if forms[0] == forms[1] or same_number(answer, gold):
        return CORRECT
    if same_repeating(*forms):
        return WRONG if restates_number(forms[0], compact(prompt)) else CORRECT
    lines = bare_latex(answer), bare_latex(gold)
    if same_words(*map(plain, lines)):
        return CORRECT
    if (is_number(gold) and not ends_in_number(answer)) or have_other_units(answer, gold):
        return WRONG
    if have_other_words(*lines) or have_other_bases(*lines):
        return WRONG
    if leaves_work(answer, gold) or have_other_order(answer, gold) or is_code(answer):
        return WRONG
    return WRONG if is_copied(answer, prompt) or lacks_equation(answer, gold, prompt) else None


def compare_answers(gold: str, answer: str) -> Verdict:
    """Whether math-verify finds the answer equal to the gold, and in itself free of contradiction.

    Of `45 = 46` it looks at the last side alone; that the sides are equal is asked for besides, and
    of values without names that they are those of the other's names in order. Angles in degrees are
    turned into radians, since it drops the sign.

    Hostile answers (towers of powers, factorials of factorials) make this hang, run out of memory
    or crash the process. Running out of stack is a verdict, out of memory the worker's concern;
    errors of other kinds that sympy meets on odd input are answers to math-verify, not equal; ours
    propagate.
    """
    try:
        asked, said = _in_radians(gold, answer)
        forms, golds = _parse(said), _parse_gold(asked)
        equal = _are_equal(golds, forms)
        consistent = not equal or (
            all(_agree(a, b) for a, b in equated_numbers(answer)) and _is_in_order(answer, gold)
        )
    except RecursionError:
        return ERROR
    if equal:
        return CORRECT if consistent else WRONG
    # math-verify hands back the bare text where it could not read an expression.
    return UNPARSED if all(isinstance(form, str) for form in forms) else WRONG


def can_be_matched(gold: str) -> bool:
    """Whether math-verify can read a gold answer, if only as text."""
    return bool(_parse(gold))


def is_constant(gold: str) -> bool:
    r"""Whether math-verify reads a gold answer without unknowns: \pi, but not Paris."""
    return any(not isinstance(form, str) and not form.free_symbols for form in _parse(gold))


def _are_equal(golds: list[Any], forms: list[Any]) -> bool:
    """What math-verify says, unless it would take apart what has plainly different values.

    Its tolerance is absolute: 0.0000004 is 0 to it.
    """
    if golds and forms:
        gold, form = golds[0], forms[0]
        if are_different(gold, form) or are_far_apart(gold, form):
            golds, forms = golds[1:], forms[1:]  # the bare texts
    return bool(verify(golds, forms, timeout_seconds=None))


def _in_radians(gold: str, answer: str) -> tuple[str, str]:
    r"""Both with their angles in radians, where both have trigonometric functions of angles.

    An answer without any sign of either unit, `\cos 20`, is in the gold answer's. Nor does a gold
    answer without such functions ask for `\tan 60^\circ`, which leaves the work to be done.
    """
    if not all(_TRIGONOMETRIC.search(text) for text in (gold, answer)):
        return gold, answer
    if not re.search(r"\\circ|°|\\pi", answer):
        return gold, answer
    of_gold, of_answer = (_ANGLE.sub(r"(\1\\cdot\\frac{\\pi}{180})", t) for t in (gold, answer))
    return of_gold, of_answer


def _is_in_order(answer: str, gold: str) -> bool:
    """Whether values without names are those of the other side's names, where it has names."""
    orders = pair_values(answer, gold)
    return not orders or any(
        all(same_text(b, a) or _are_equal(_parse(a), _parse(b)) for a, b in pairs)
        for pairs in orders
    )


@lru_cache(GOLDS)
def _parse_gold(gold: str) -> list[Any]:
    """The readings of a gold answer, which every rollout of its group is compared with."""
    return _parse(gold)


def _agree(one: str, other: str) -> bool:
    """Whether two numbers are equal, to as many decimals as the shorter one is written with.

    What cannot be read contradicts nothing.
    """
    forms = [_parse(one), _parse(other)]
    if any(all(isinstance(form, str) for form in readings) for readings in forms):
        return True
    decimals = min([6, *(len(digits) for digits in _DECIMALS.findall(f"{one} {other}"))])
    return bool(verify(*forms, float_rounding=decimals, timeout_seconds=None))


def _parse(text: str) -> list[Any]:
    """Math-verify's readings of one LaTeX answer, best first; empty where there is none."""
    line = _EXPONENT.sub(r"\1\\cdot10^{\2}", set_words_apart(bare_latex(text)))
    forms: list[Any] = parse(f"${line}$", extraction_config=EXTRACTION, parsing_timeout=None)
    return forms

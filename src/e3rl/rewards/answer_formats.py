r"""Answers as text: in one spelling, told from restated questions, compared where text decides.

Pure text, no mathematics: what is rejected here never reaches a computer-algebra system.

A reward must be earned by a *final* answer. An algebra system alone cannot see that: it finds
`\boxed{12+34}` equal to 46, and reads `\boxed{2(23)}` as the mixed number 25. Two rules close this:

* a gold answer that is a single number (`is_number`) is answered by a single number
  (`ends_in_number`): digits, a decimal, a fraction that is no integer in disguise, a mixed number
  or scientific notation, with or without a unit, perhaps after `x =`;
* an expression copied from the prompt (`is_copied`) is no answer.

Nor is `\boxed{45=46}`: what an answer equates (`equated_numbers`) has to be equal.

None of these applies to an answer written exactly like the gold answer (`same_text`), and neither
restricts other golds: roots, multiples of π, powers, intervals and words are compared as they are.
"""

import re
from collections.abc import Mapping
from itertools import groupby

from e3rl.rewards.wording import (
    UNIT,
    WORDING,
    fold_scales,
    is_measure,
    mark_words,
    read_unit,
    set_clock,
    spell_symbols,
)

INTEGER = re.compile(r"-?\d+", re.ASCII)
MAX_DIGITS = 4_000  # of numbers that are worked with; Python's limit is 4,300

_BOX = re.compile(r"\\boxed\s*\{")
_FLAT = re.compile(r"(?:[^{}\\]+|\\.|\{[^{}\\]*\})*+", re.DOTALL)  # no brace within a brace
_DELIMITER = re.compile(r"(?<!\\)\$|(?<!\\)\\[()\[\]]")
_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|quad|qquad|big|Big|bigl|bigr)(?![a-zA-Z])"
    r"|\\[!,;: ]|(?<!\\)\\[()\[\]]|~|(?<!\\)\$"
)
_SPELLINGS = (
    (re.compile(r"\\[dtc]frac"), r"\\frac"),
    (re.compile(r"\\frac\s*(\d)\s*(\d)"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*(\{[^{}]*\})\s*(\d)"), r"\\frac\1{\2}"),
    (re.compile(r"\\sqrt\s*(\d)"), r"\\sqrt{\1}"),
    (re.compile(r"([\^_])\{(\w)\}"), r"\1\2"),
    (re.compile(r"\\(?:cdot|times)(?![a-zA-Z])|[×·∙]"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])|÷"), "/"),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|°"), r"^\\circ"),
    (re.compile("[−–]"), "-"),
)
_EMPTY_SET = re.compile(r"\\(?:varnothing|emptyset)(?![a-zA-Z])|∅")
# What ends a line and says nothing: spaces, marks and signs; also half a command for a space.
# A search begins where no such thing stands in front: once, however many there are.
_LAST = re.compile(
    r"(?<![\s.,;~%\\])(?<!\\[,;:! ])(?<!\\quad)(?<!\\qquad)"
    r"(?:\s*+(?:\\q?quad(?![a-zA-Z])|\\?%|\\[,;:! ]?+|[.,;~]))++$"
)

_BRACKET = re.compile(r"[()\[\]]|\\[{}]")
_MEASURE = re.compile(rf"{UNIT}(?:\^\{{?[23]\}}?)?$")
# Of blanks those before a group that no number starts like, and those behind it.
LATEX_GROUPS = re.compile(r"(?<=\d)(?:,\s?\\!|\{,\}|\\[!,;: ]|~)(?=\d{3}(?!\d))")
_SEPARATOR = re.compile(
    rf"{LATEX_GROUPS.pattern}"
    r"|(?<=\d)(?<!\d{4}) (?=(?:\d{3} ){0,4}0\d{2}(?!\d))|(?<=\d 0\d{2}) (?=\d{3}(?!\d))"
)
_MIXED = re.compile(r"(?<![\w.,^{}\\/])(?<!\d )(\d+) (\d+) ?/ ?(\d+)(?![\d/]|[.,]\d)", re.ASCII)
_THOUSANDS = re.compile(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", re.ASCII)
_DECORATION = re.compile(r"\\\$|\\?%|\^\{?\\circ\}?|°|[.,;]$")
_RELATION = re.compile(r"=|\\approx|\\equiv")
_NAME = re.compile(r"[a-zA-Z](?:_\{?\w+\}?)?|\\angle[A-Z]+")
_SUM = re.compile(rf"(?:{_NAME.pattern})(?:[+-](?:{_NAME.pattern}))+")  # m+n
_NAMES = re.compile(rf"{_SUM.pattern}|{_NAME.pattern}")
_WRAPPED = re.compile(r"(?:\\\{|[({\[])([^(){}\[\]]*?)(?:\\\}|[)}\]])")
_NUMBER = re.compile(
    rf"""[-+]?(?:
        \d*\\frac\{{[-+]?(?P<above>\d+)\}}\{{(?P<below>[-+]?\d+)\}}
      | (?P<over>\d+)/(?P<under>[-+]?\d+)
      | (?:\d(?:\.\d+)?\*)?10\^\{{?[-+]?\d{{1,3}}\}}?
      | \d+(?:\.\d+)?[eE][-+]?\d{{1,3}}
      | \d+\.?\d* | \.\d+
    ){UNIT}?""",
    re.VERBOSE | re.ASCII,
)
_BARE_WORDS = re.compile(r"(?<=[\d})]) +([a-zA-Z]+(?: [a-zA-Z]+)*)$")
# A word that names what is counted.
_COUNTED = re.compile(r"(?=[a-zA-Z]*[aeiouAEIOU])[a-zA-Z]{4,}\b")
_BARE_UNIT = re.compile(r"(?<=[\d}])[a-zA-Z]+(?:/[a-zA-Z]+)?(?:\^\{?-?\d\}?)?$")
_RATE = re.compile(r"(?<=[\d}]) *([a-zA-Zµ]+/[a-zA-Z]+(?:\^\{?-?\d\}?)?)$")
_SCALE = re.compile(r"(?:\^\{?\\circ\}?|°|degrees?) ?(C|F)(?:elsius|ahrenheit)?$")
_LAST_UNIT = re.compile(r"(?<=[\d})]) *([a-zA-Zµ¢€][a-zA-Zµ.^/*{}\d -]*)$")
_POWER_OF_TEN = re.compile(r"(?<!\d)10\^")
_BLANK = re.compile(r"(\d\.? (?=\.?\d))| ")  # all go but group 1
_INEXACT = re.compile(r"\\approx|\\equiv")
_ARITHMETIC = re.compile(r"(?=.*\d)(?:\\(?:frac|sqrt|pi)(?![a-zA-Z])|[-+*/^.(){}\[\]\d])+")
_UNDONE = re.compile(
    r"\\(?:i*int|oint|lim)(?![a-zA-Z])|\\(?:sum|prod)(?![a-zA-Z]).*\\infty", re.DOTALL
)
_CALL = re.compile(r"(?<![\\a-zA-Z])([a-zA-Z_]{4,})\(")
_CALLABLE = {
    *("sqrt", "cbrt", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "asin", "acos", "atan"),
    *("floor", "ceil", "frac", "binom", "sign", "degrees", "units", "choose", "round", "fact"),
}
_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_RANKING = re.compile(r"[A-Z]{3,}|[A-Z](?:,[A-Z])+")
_CAPITAL = re.compile(r"[A-Z]")
_BETWEEN = re.compile(r"[,;]| and ")
_BRACKETED = re.compile(r"(?:\\\{|[({\[])(.*?)(?:\\\}|[)}\]])")
_FACTOR = re.compile(r"(?<=[\d)])(?=\()|(?<=\))(?=\d)")
_OPERATION = re.compile(
    r".[-+*/^!=]|\\(?:frac|sqrt|binom|sum|prod|int|log|ln|exp|sin|cos|tan|lfloor|lceil|gcd)"
)


def last_box(text: str) -> str | None:
    r"""Content of the last `\boxed{...}` of the text; None without one or where it never closes.

    Braces balance; an escaped brace, as in `\{1, 2\}`, counts as a letter.
    """
    start = None
    for box in _BOX.finditer(text):
        start = box.end()
    if start is None:
        return None
    depth, position = 1, start
    while flat := _FLAT.match(text, position):
        position = flat.end()
        if text[position : position + 1] not in ("{", "}"):  # the end, or a backslash there
            return None
        depth += 1 if text[position] == "{" else -1
        if depth == 0:
            return text[start:position].strip()
        position += 1
    return None


def bare_latex(text: str) -> str:
    r"""One line of LaTeX without `$`, `\(`, `\[`, a box, `,\!` or `\,` between the digit groups of
    a number, last `.`, `,`, `\,` or `%`; `3 1/2`, `5\text{ million}`, times of day and the empty
    set in one spelling."""
    box = last_box(text)
    line = _SEPARATOR.sub("", spell_symbols(_DELIMITER.sub(" ", text if box is None else box)))
    line = _EMPTY_SET.sub(r"\\emptyset ", line)
    line = _MIXED.sub(r"\1\\frac{\2}{\3}", re.sub(r"\s+", " ", line).strip())
    line = set_clock(fold_scales(line)).strip()
    return _LAST.sub("", line)


def set_words_apart(line: str) -> str:
    r"""Bare words behind a number as text: `15 books` is `15\text{ books}`, `17 km/h` likewise.

    An algebra system would take them for a product of letters. Words of mathematics (`3 halves`),
    names of unknowns and what says more than a unit stay as they are.
    """
    if (rate := _RATE.search(line)) and read_unit(rate[1]):
        return rf"{line[: rate.start()]}\text{{ {rate[1]}}}"
    found = _BARE_WORDS.search(line)
    if found is None or not _COUNTED.match(found[1]) or not is_measure(found[1]):
        return line
    return rf"{line[: found.start()]}\text{{ {found[1]}}}"


def plain(text: str) -> str:
    """The same LaTeX in one spelling: no layout commands, no text wrappers, `*` and `/`."""
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    text = WORDING.sub(r" \1 ", _LAYOUT.sub(" ", text))
    return re.sub(r"\s+", " ", text).strip()


def compact(text: str) -> str:
    """`plain` without blanks, but for those between digits: `4 6` is not 46."""
    return _BLANK.sub(r"\1", plain(text))


def normal_form(answer: str) -> str:
    """The answer without layout, in one spelling, an integer without leading zeros.

    Equal texts are equal answers; different ones need not differ (1/2 and 0.5 do).
    """
    text = compact(bare_latex(answer))
    return shortest_integer(text) if INTEGER.fullmatch(text) else text


def shortest_integer(text: str) -> str:
    """An integer literal without leading zeros, and 0 without a sign.

    As text, since Python turns no integer of more than 4,300 digits into a number.
    """
    digits = text.lstrip("-").lstrip("0")
    return f"-{digits}" if digits and text.startswith("-") else digits or "0"


def same_text(answer: str, gold: str) -> bool:
    """Whether the answer is written like the gold answer, up to layout and spelling."""
    return normal_form(answer) == normal_form(gold)


def same_number(answer: str, gold: str) -> bool:
    r"""Whether the gold is one number and the answer, after `name =`, is that number as written.

    Digit groups, units (squared ones too), currency, percent and degree signs do not count,
    unless both have units that differ: `x = 12{,}345\text{ cm}^2` is 12345, and
    `5\text{ m}` is 5, but not `5\text{ km}`. An algebra system reads 12,345 as a pair where a unit
    stands behind it, and `3\text{ cm}^2` as 9. Brackets are left to it: `(12,345)` may be a point.
    """
    if _BRACKET.search(bare_latex(answer) + bare_latex(gold)) or have_other_units(answer, gold):
        return False
    *named, value = map(_without_unit, _sides(gold))
    *names, stated = map(_without_unit, _sides(answer))
    if named or not all(_NAMES.fullmatch(name) for name in names):
        return False
    return _is_literal(value) and stated == value


def is_number(text: str) -> bool:
    r"""Whether the text is one number, after `name =` and before a `\text{unit}` if need be.

    A fraction whose division comes out even, such as 92/2, is an operation and no number.
    """
    *names, value = _sides(text)
    return all(_NAME.fullmatch(name) for name in names) and _is_literal(value)


def ends_in_number(answer: str) -> bool:
    """Whether the answer, or its last side if it is a relation, is one number; units may be bare.

    Wider than `is_number` on purpose: `m + n = 46` and `46 m` state their number.
    """
    return _is_literal(_BARE_UNIT.sub("", _sides(answer)[-1]))


def is_copied(answer: str, prompt: str) -> bool:
    """Whether the answer is an expression that stands in the prompt, up to layout and spelling.

    Numbers and words are never copies: they may be what is asked for. Powers of ten can be: they
    may be what is to be worked out.
    """
    expression = compact(answer)
    is_power = _POWER_OF_TEN.search(expression) is not None
    if (is_number(answer) and not is_power) or not _OPERATION.search(expression):
        return False
    if expression not in compact(prompt):
        return False
    pattern = r"\s*".join(re.escape(letter) for letter in expression)
    return re.search(rf"(?<![a-zA-Z0-9]){pattern}(?![a-zA-Z0-9])", plain(prompt)) is not None


def have_other_units(answer: str, gold: str) -> bool:
    r"""Whether both end in a number with a known unit, in different ones; `\$` is one, too."""
    units = [_last_unit(text) for text in (answer, gold)]
    return None not in units and units[0] != units[1]


def leaves_work(answer: str, gold: str) -> bool:
    r"""Whether the answer has an integral, a limit or an infinite sum where the gold has none.

    `\sum_{n=1}^{\infty} \frac{1}{n^2}` is what \frac{\pi^2}{6} was to be found of.
    """
    return _UNDONE.search(answer) is not None and _UNDONE.search(gold) is None


def lacks_equation(answer: str, gold: str, prompt: str) -> bool:
    """Whether the gold answer equates a sum of names, and the answer is one side of an equation.

    `x+y=3` is a line, and 3 is none, unless the prompt has x+y: then its value may be asked for.
    """
    sums = [side for side in _sides(gold)[:-1] if _SUM.fullmatch(side)]
    if not sums or len(_sides(answer)) > 1:
        return False
    asked = compact(prompt)
    return not any(side in asked for side in sums)


def have_other_order(answer: str, gold: str) -> bool:
    """Whether both have the same letters in another order: east and seat, ABC and CBA.

    Letters are those of words of four letters and more, and of a gold answer that is a row of
    capitals, three or more (two may be a segment) or with commas between them, all capitals. An
    algebra system takes a word for the product of its letters, and a list for a set.
    """
    lines = [compact(bare_latex(text)) for text in (answer, gold)]
    if _RANKING.fullmatch(lines[1]):
        said, asked = map(_CAPITAL.findall, lines)
    else:
        said, asked = (_WORD.findall(line.lower()) for line in lines)
    return said != asked and sorted("".join(said)) == sorted("".join(asked))


def pair_values(answer: str, gold: str) -> list[list[tuple[str, str]]]:
    """Pairs (value of the gold answer, value of the answer) where one of them has their names.

    Of `y=3, x=2` and `2, 3`: in the order of the gold answer, and in that of its names. One of the
    two has to agree. Of `(1,2)` and `y=1, x=2`: in the order of x, y and z. Empty where neither is
    a list of values of different names, both have names, or one has another number of values.
    """
    named, said = _named_values(gold), _named_values(answer)
    if bool(named) == bool(said):
        return []
    values = list((named or said).items())
    orders, items = [values, sorted(values)], _listed(answer if named else gold)
    if said:
        is_point = set(said) <= set("xyz") and plain(bare_latex(gold)).startswith("(")
        orders = orders[1:] if is_point else []
    if not 1 < len(values) == len(items) or any("=" in item for item in items):
        return []
    pairs = [[(value, item) for (_, value), item in zip(o, items, strict=True)] for o in orders]
    return [[(item, value) for value, item in each] for each in pairs] if said else pairs


def _named_values(text: str) -> dict[str, str]:
    """Values of a list by name; empty where it is no list of values of different names."""
    named = [item.split("=") for item in _BETWEEN.split(plain(bare_latex(text)))]
    if not all(len(sides) == 2 and _NAME.fullmatch(compact(sides[0])) for sides in named):
        return {}
    values = {compact(name): value.strip() for name, value in named}
    return values if len(values) == len(named) else {}


def _listed(text: str) -> list[str]:
    """Items of a list, in brackets or not."""
    stated = plain(bare_latex(text))
    bracketed = _BRACKETED.fullmatch(stated)
    return [item.strip() for item in _BETWEEN.split(bracketed[1] if bracketed else stated)]


def is_code(answer: str) -> bool:
    """Whether the answer calls a function that mathematics does not know: `eval(...)`."""
    return any(name not in _CALLABLE for name in _CALL.findall(answer))


def _last_unit(text: str) -> Mapping[str, int] | None:
    line = bare_latex(text)
    if r"\$" in line:
        return read_unit("dollar")
    scales = {"C": " celsius", "F": " fahrenheit"}
    found = _LAST_UNIT.search(_SCALE.sub(lambda scale: scales[scale[1]], plain(line)))
    return None if found is None else read_unit(found[1])


def equated_numbers(answer: str) -> list[tuple[str, str]]:
    r"""Pairs of arithmetic sides that the answer joins by `=`: (`12+34`, `46`) of `n = 12+34 = 46`.

    Sides with names are left out, and of sides with units only those with the same one are paired:
    `50\% = 0.5` is no contradiction. `\approx` and `\equiv` equate nothing.
    """
    pairs = []
    for chain in _INEXACT.split(_without_groups(bare_latex(answer))):
        sides = sorted(map(_measured, chain.split("=")), key=lambda side: side[0])
        for _, same in groupby(sides, key=lambda side: side[0]):
            numbers = [value for _, value in same if _ARITHMETIC.fullmatch(value)]
            pairs += [(other, numbers[-1]) for other in numbers[:-1]]
    return pairs


def _measured(side: str) -> tuple[list[str], str]:
    """Units and signs of one side of a relation, and what it is without them, products spelt out.

    An algebra system reads 2(23) as the mixed number 25.
    """
    line = compact(mark_words(side))
    signs = [unit.strip() for unit in WORDING.findall(side)] + _DECORATION.findall(line)
    return signs, _FACTOR.sub("*", _DECORATION.sub("", _without_unit(line)))


def _sides(text: str) -> list[str]:
    """The sides of a relation without spaces, digit groups, currency, percent and degree signs."""
    words = set_words_apart(_without_groups(bare_latex(text)))
    line = compact(mark_words(words))
    return [_unwrap(_DECORATION.sub("", side)) for side in _RELATION.split(line)]


def _without_groups(line: str) -> str:
    return _THOUSANDS.sub(lambda digits: digits[0].replace(",", ""), line)


def _without_unit(side: str) -> str:
    return _MEASURE.sub("", side)


def _unwrap(side: str) -> str:
    """Without one pair of brackets around everything."""
    wrapped = _WRAPPED.fullmatch(side)
    return wrapped[1] if wrapped else side


def _is_literal(side: str) -> bool:
    number = _NUMBER.fullmatch(side)
    if number is None:
        return False
    above, below = number["above"] or number["over"], number["below"] or number["under"]
    if above is None:
        return True
    if max(len(above), len(below)) > MAX_DIGITS:
        return False
    return int(below) != 0 and int(above) % int(below) != 0

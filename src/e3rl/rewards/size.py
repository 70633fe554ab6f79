r"""How large the numbers are that an answer would make an algebra system work out.

`9^{9^{9}}` has 300 million digits, and a process that evaluates it can only be killed. Its size is
seen without evaluating anything: a small reader of LaTeX carries upper bounds of logarithms up the
tree. It knows nothing of what is meant; unknown commands and names count as numbers of one digit.
"""

import math
import re
from dataclasses import dataclass

from e3rl.rewards.answer_formats import bare_latex, plain

MOST_DIGITS = 10_000  # of an intermediate number; 2019! has 5,800
MOST_TERMS = 5_000  # of a sum or product that has to be added up
MOST_NESTED = 6  # brackets, fractions and exponents within each other
MOST_FUNCTIONS = 3  # functions of functions: a sine of a logarithm of a cosine
MOST_ITEMS = 40  # of a set, a list or a matrix
MOST_RELATIONS = 8  # signs of equality and order
MOST_EXPANDED = 500  # terms of a power of a sum with names in it, multiplied out
HUGE = 1e12  # logarithms stop growing here

_TOKEN = re.compile(r"\d+(?:\.\d+)?|\.\d+|\\[a-zA-Z]+|\\.|\S", re.DOTALL)
_OPENING = {"{", "(", "[", r"\{", r"\lfloor", r"\lceil", r"\langle"}
_CLOSING = {"}", ")", "]", r"\}", r"\rfloor", r"\rceil", r"\rangle"}
_ADDING = {
    *("+", "-", ",", ";", "=", "<", ">", "&", r"\\", r"\pm", r"\mp", r"\cup", r"\cap", r"\to"),
    *(r"\le", r"\leq", r"\ge", r"\geq", r"\ne", r"\neq", r"\in", r"\approx", r"\equiv", r"\mid"),
}
_RELATING = {"=", "<", ">", r"\le", r"\leq", r"\ge", r"\geq", r"\approx", r"\equiv", r"\ne"}
_SEPARATING = {",", ";", "&", r"\\"}
_FRACTIONS = {r"\frac", r"\dfrac", r"\tfrac", r"\cfrac"}
_ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
_BINOMIALS = {r"\binom", r"\dbinom", r"\tbinom"}
_FUNCTIONS = {
    *(
        f"\\{prefix}{name}{suffix}"
        for prefix in ("", "arc", "ar")
        for name in _ANGLES
        for suffix in ("", "h")
    ),
    *(r"\exp", r"\ln", r"\log", r"\lg"),
}
_REPEATING = {r"\sum", r"\prod", r"\int", r"\iint", r"\iiint", r"\oint", r"\lim"}


@dataclass(frozen=True)
class Size:
    """Upper bounds of what an answer takes.

    digits     of its largest number, also of those that it is made from
    terms      of its longest sum or product with a sign for it
    nested     how deep its brackets are
    functions  how many functions stand within each other
    items      what is between commas and in rows
    relations  signs of equality and order
    expanded   terms of its largest power of a sum of names, multiplied out
    """

    digits: float
    terms: float
    nested: int
    functions: int
    items: int
    relations: int
    expanded: float

    @property
    def fits(self) -> bool:
        """Whether an algebra system copes with it."""
        return (
            self.digits <= MOST_DIGITS
            and self.terms <= MOST_TERMS
            and self.nested <= MOST_NESTED
            and self.functions <= MOST_FUNCTIONS
            and self.items <= MOST_ITEMS
            and self.relations <= MOST_RELATIONS
            and self.expanded <= MOST_EXPANDED
        )


def measure_size(answer: str) -> Size:
    """The size of an answer in LaTeX, in one pass over its text; no text is an error."""
    tokens = _TOKEN.findall(plain(bare_latex(answer)))
    reader = _Reader(tokens)
    while reader.position < len(reader.tokens):
        reader.sequence(0)
        reader.position += 1  # a bracket that was never opened
    items = sum(token in _SEPARATING for token in tokens)
    relations = sum(token in _RELATING for token in tokens)
    functions = _count_nested_functions(tokens)
    return Size(
        reader.digits, reader.terms, reader.nested, functions, items, relations, reader.expanded
    )


def _count_nested_functions(tokens: list[str]) -> int:
    r"""How many functions stand within each other at most, as in `\ln(\sin^{2}(x))`: two."""
    most = within = waiting = 0  # functions whose argument is yet to come
    outside: list[tuple[int, int]] = []  # of each open bracket: `within` and `waiting` behind it
    raised = False
    for token in tokens:
        if token in _FUNCTIONS:
            waiting += 1
            most = max(most, within + waiting)
        elif token in _OPENING:  # the argument, or an exponent or index before it
            outside.append((within, waiting if raised else 0))
            within, waiting = within + (0 if raised else waiting), 0
        elif token in _CLOSING:
            within, waiting = outside.pop() if outside else (0, 0)
        elif token not in ("^", "_") and not raised:
            waiting = 0  # its argument
        raised = token in ("^", "_")
    return most


@dataclass(frozen=True)
class _Value:
    """An upper bound of log10 of the absolute value, at least 0; and what it is a sum of."""

    log: float = 0.0
    summands: int = 1
    named: bool = False  # has letters or commands in it


_ONE = _Value()


class _Reader:
    """Recursive descent over the tokens; no token is looked at twice, and none is an error."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0
        self.digits = self.terms = self.expanded = 0.0
        self.nested = 0

    def sequence(self, depth: int) -> _Value:
        """Everything up to the end or to a closing bracket, which is left to the caller."""
        self.nested = max(self.nested, depth)
        summands, log, named, divides = [0.0], 0.0, False, False
        while (token := self._peek()) is not None and token not in _CLOSING:
            if token in _ADDING:
                self.position += 1
                summands.append(0.0)
                divides = False
            elif token == "/":
                self.position += 1
                divides = True
            else:
                factor = self._raised(depth)
                named = named or factor.named
                if not divides:  # what divides an integer makes it no larger
                    summands[-1] = self._note(summands[-1] + factor.log)
                divides = False
        log = self._note(max(summands) + math.log10(len(summands)))
        return _Value(log, len(summands), named)

    def _raised(self, depth: int) -> _Value:
        """A factor with what stands behind it: exponents, indices, factorials."""
        repeats = self._peek() in _REPEATING
        value = self._factor(depth)
        while (token := self._peek()) in ("^", "_", "!"):
            self.position += 1
            if token == "!":
                self.position += self._peek() == "!"  # a double factorial is smaller
                times = 10 ** min(value.log, 12)
                value = _Value(self._note(times * value.log), named=value.named)
                continue
            argument = self._argument(depth)
            if repeats:
                self.terms = max(self.terms, 10 ** min(argument.log, 12))
            elif token == "^":
                value = self._power(value, argument)
        return value

    def _power(self, base: _Value, exponent: _Value) -> _Value:
        times = 10 ** min(exponent.log, 12)
        if base.named and base.summands > 1 and not exponent.named:
            free = base.summands - 1
            expanded = math.exp(min(27.0, _log_binomial(times + free, free)))
            self.expanded = max(self.expanded, expanded)
        log = self._note(times * max(base.log, math.log10(2)))
        return _Value(log, named=base.named or exponent.named)

    def _factor(self, depth: int) -> _Value:
        """One thing, with its arguments where it is a command that takes some."""
        token = self.tokens[self.position]
        self.position += 1
        if token in _OPENING:
            value = self.sequence(depth + 1) if depth < 4 * MOST_NESTED else self._too_deep()
            self.position += 1  # the bracket that closes it
            return value
        if token in _FRACTIONS:
            above, below = self._argument(depth), self._argument(depth)
            return _Value(above.log, named=above.named or below.named)
        if token in _BINOMIALS:
            above, below = self._argument(depth), self._argument(depth)
            ways = min(
                10 ** min(above.log, 12) * math.log10(2), above.log * 10 ** min(below.log, 9)
            )
            return _Value(self._note(ways), named=above.named or below.named)
        if token == r"\sqrt":
            if self._peek() == "[":
                self._argument(depth)
            return self._argument(depth)
        if token[0].isdecimal():
            whole = token.partition(".")[0].lstrip("0")
            leading = whole[:15]
            digits = math.log10(max(1, int(leading or 1))) + len(whole) - len(leading)
            return _Value(self._note(digits))
        return _Value(named=token[0] == "\\" or token.isalpha())

    def _argument(self, depth: int) -> _Value:
        """What a command or an exponent takes: a group, a number, or another command."""
        token = self._peek()
        if token is None or token in _CLOSING:
            return _ONE
        if token in ("+", "-"):
            self.position += 1
            return self._argument(depth)
        return self._factor(depth)

    def _too_deep(self) -> _Value:
        self.nested = 4 * MOST_NESTED
        self.position = len(self.tokens)
        return _ONE

    def _note(self, log: float) -> float:
        log = min(log, HUGE)
        self.digits = max(self.digits, log)
        return log

    def _peek(self) -> str | None:
        return self.tokens[self.position] if self.position < len(self.tokens) else None


def _log_binomial(n: float, k: float) -> float:
    """log of n over k, for k of at most n."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

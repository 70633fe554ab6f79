"""Whether two expressions have different values: decided in microseconds, where it can be.

An algebra system proves that two expressions are equal by simplifying their difference, which may
take minutes, and most answers are wrong. Where the difference is plainly not zero at some point,
nothing is left to prove. Values are machine numbers with a bound of what rounding has done to them;
where that does not settle it, or an operation is not known here, the question stays open.
"""

import cmath
import math
from collections.abc import Callable, Sequence

import sympy
from sympy.core.function import Function

TOLERANCE = 1e-5  # absolute, and of the largest number on the way; comparisons round to 6 decimals
RELATIVE = 1e-3  # of the larger of two numbers; comparisons of decimals are closer from 1e-3 on
ROUNDING = 1e-12  # of the largest number on the way
MOST_NODES = 2_000  # of an expression that is evaluated

_FUNCTIONS: dict[type, Callable[[complex], complex]] = {
    sympy.exp: cmath.exp,
    sympy.log: cmath.log,
    sympy.sin: cmath.sin,
    sympy.cos: cmath.cos,
    sympy.tan: cmath.tan,
    sympy.cot: lambda x: 1 / cmath.tan(x),
    sympy.sec: lambda x: 1 / cmath.cos(x),
    sympy.csc: lambda x: 1 / cmath.sin(x),
    sympy.asin: cmath.asin,
    sympy.acos: cmath.acos,
    sympy.atan: cmath.atan,
    sympy.sinh: cmath.sinh,
    sympy.cosh: cmath.cosh,
    sympy.tanh: cmath.tanh,
    sympy.Abs: lambda x: complex(abs(x)),
}


class _UnknownError(Exception):
    """An operation whose value is not worked out here."""


def are_different(one: object, other: object) -> bool:
    """Whether both are expressions, and have different values where names have some value each.

    `name = expression` beside an expression is its right-hand side.
    """
    if isinstance(one, sympy.Eq) != isinstance(other, sympy.Eq):
        one, other = _right_side(one), _right_side(other)
    plain = _is_plain(one), _is_plain(other)
    if True in plain and (_has_parts(one) or _has_parts(other)):
        return True
    if not all(plain):
        return False
    try:
        first, second = _Evaluation(), _Evaluation()
        gap = abs(first.value(one) - second.value(other))
    except (_UnknownError, ArithmeticError, ValueError, RecursionError):
        return False
    return math.isfinite(gap) and gap > TOLERANCE * max(1.0, first.largest, second.largest)


def are_far_apart(one: object, other: object) -> bool:
    """Whether both are numbers that differ by more than a thousandth of the larger one.

    A rounding to decimals makes 0.0000004 equal to 0.0000001 and to 0. Of lists, sets and intervals
    a member of one is far from all of the other's.
    """
    one, other = _right_side(one), _right_side(other)
    parts, others = _members(one), _members(other)
    if parts and others:
        return any(all(are_far_apart(a, b) for b in others) for a in parts) or any(
            all(are_far_apart(a, b) for a in parts) for b in others
        )
    if not all(isinstance(form, sympy.Expr) and not form.free_symbols for form in (one, other)):
        return False
    first, second = _Evaluation(), _Evaluation()
    try:
        value, other_value = first.value(one), second.value(other)
    except (_UnknownError, ArithmeticError, ValueError, RecursionError):
        return False
    furthest = RELATIVE * max(abs(value), abs(other_value))
    return abs(value - other_value) > max(furthest, ROUNDING * max(first.largest, second.largest))


def _members(form: object) -> Sequence[object]:
    if isinstance(form, sympy.Interval):
        return [form.start, form.end]
    return list(form.args) if isinstance(form, sympy.FiniteSet | sympy.Tuple) else []


def _right_side(form: object) -> object:
    if isinstance(form, sympy.Eq) and isinstance(form.lhs, sympy.Symbol):
        return form.rhs
    return form


def _has_parts(form: object) -> bool:
    """Whether it is a pair, a set of several, an interval or a matrix, and no single value."""
    if isinstance(form, sympy.FiniteSet | sympy.Tuple):
        return len(form.args) > 1
    return isinstance(form, sympy.Interval | sympy.Union | sympy.MatrixBase)


def _is_plain(form: object) -> bool:
    """Names alone may stand for words, which are compared in another way."""
    return isinstance(form, sympy.Expr) and not isinstance(form, sympy.Symbol)


class _Evaluation:
    """The value of one expression, and the largest number that it was made from."""

    def __init__(self) -> None:
        self.largest = 0.0
        self._nodes = 0

    def value(self, form: sympy.Basic) -> complex:
        """Raises _UnknownError, or ArithmeticError where a value is not finite."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise _UnknownError
        found = self._value(form)
        if not cmath.isfinite(found):
            raise OverflowError
        self.largest = max(self.largest, abs(found))
        return found

    def _value(self, form: sympy.Basic) -> complex:
        if isinstance(form, sympy.Number | sympy.NumberSymbol) and form.is_finite:
            return complex(float(form))
        if form is sympy.I:
            return 1j
        if isinstance(form, sympy.Symbol):
            return complex(0.7 + (sum(map(ord, form.name)) * 0.6180339887) % 1.0)
        if isinstance(form, sympy.Add):
            return sum(map(self.value, form.args), 0j)
        if isinstance(form, sympy.Mul):
            return math.prod(map(self.value, form.args), start=1 + 0j)
        if isinstance(form, sympy.Pow):
            base, exponent = map(self.value, form.args)
            return complex(base**exponent)
        known = _FUNCTIONS.get(type(form))
        if isinstance(form, Function) and known is not None and len(form.args) == 1:
            return known(self.value(form.args[0]))
        raise _UnknownError

"""Generated arithmetic problems with a real difficulty spread: the embedded default.

Six families with three levels each. A problem is a list of parameters; its derivation is a
generator that yields (expression, value) steps and is sent the value it should go on with, so
that the gold answer and demonstrations with mistakes come from the same code.

Splits are disjoint for every seed and size because the hash of a prompt decides its split. Disjoint
means no prompt is in two of them; a mirrored one may be (7*8 here, 8*7 there: 19 of 256 validation
problems of the default).
"""

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Literal

from e3rl.data.problem import Problem
from e3rl.seeds import derive_seed

Split = Literal["train", "validation", "warm_start"]
Derivation = Generator[tuple[str, int], int, int]

SPLIT_BUCKETS: dict[str, range] = {
    "validation": range(0, 2),
    "train": range(2, 6),
    "warm_start": range(6, 8),
}
N_BUCKETS = 8
LEVELS = (1, 2, 3)
PATIENCE = 400  # fruitless draws in a row after which a family and level counts as used up


@dataclass(frozen=True)
class Arithmetic:
    """One drawn problem: its prompt and how to solve it step by step."""

    family: str
    level: int
    prompt: str
    derivation: Callable[[], Derivation]

    @property
    def answer(self) -> int:
        return follow(self.derivation())[-1][1]


def follow(
    steps: Derivation, mistake: Callable[[int], int] = lambda value: value
) -> list[tuple[str, int]]:
    """Run a derivation; `mistake` may replace each value, and the error carries on.

    Returns the (expression, value) steps followed by ("", answer).
    """
    done: list[tuple[str, int]] = []
    try:
        expression, value = next(steps)
        while True:
            value = mistake(value)
            done.append((expression, value))
            expression, value = steps.send(value)
    except StopIteration as end:
        return [*done, ("", end.value)]


def chain(level: int, rng: random.Random) -> Arithmetic:
    """Sums and differences of two, three or four numbers."""
    top = (99, 60, 40)[level - 1]
    terms = [rng.randint(2, top) for _ in range(level + 1)]
    signs = [rng.choice("+-") for _ in terms[1:]]

    def derivation() -> Derivation:
        total = terms[0]
        for sign, term in zip(signs, terms[1:], strict=True):
            value = total + term if sign == "+" else total - term
            total = yield f"{total}{sign}{term}", value
        return total

    tail = "".join(f"{sign}{term}" for sign, term in zip(signs, terms[1:], strict=True))
    return Arithmetic("chain", level, f"{terms[0]}{tail}=?", derivation)


def product(level: int, rng: random.Random) -> Arithmetic:
    """Products that are split into tens and units."""
    big = rng.randint(11, 99 if level < 3 else 49)
    small = rng.randint(2, 9) if level < 3 else rng.randint(11, 19)
    extra = rng.randint(2, 50) if level == 2 else 0
    shown = [big, small] if rng.random() < 0.5 else [small, big]

    def derivation() -> Derivation:
        if level == 3:
            left = yield f"{big}*10", big * 10
            right = yield f"{big}*{small - 10}", big * (small - 10)
        else:
            left = yield f"{big - big % 10}*{small}", (big - big % 10) * small
            right = yield f"{big % 10}*{small}", (big % 10) * small
        total = yield f"{left}+{right}", left + right
        if extra:
            total = yield f"{total}+{extra}", total + extra
        return total

    tail = f"+{extra}" if extra else ""
    return Arithmetic("product", level, f"{shown[0]}*{shown[1]}{tail}=?", derivation)


def bracket(level: int, rng: random.Random) -> Arithmetic:
    """A bracket times a number or another bracket."""
    if level < 3:
        a, b = (rng.randint(2, 12 if level == 1 else 30) for _ in range(2))
        c = rng.randint(2, 9)

        def single() -> Derivation:
            inner = yield f"{a}+{b}", a + b
            return (yield f"{inner}*{c}", inner * c)

        return Arithmetic("bracket", level, f"({a}+{b})*{c}=?", single)
    a, c, d = rng.randint(8, 20), rng.randint(2, 6), rng.randint(2, 6)
    b = rng.randint(2, a - 2)

    def double() -> Derivation:
        left = yield f"{a}-{b}", a - b
        right = yield f"{c}+{d}", c + d
        return (yield f"{left}*{right}", left * right)

    return Arithmetic("bracket", level, f"({a}-{b})*({c}+{d})=?", double)


def modulus(level: int, rng: random.Random) -> Arithmetic:
    """Remainders of a product, or of a product and a sum."""
    a, b = rng.randint(2, 12 if level < 2 else 19), rng.randint(2, 9)
    c = rng.randint(2, 30) if level == 3 else 0
    m = rng.randint(3, 9 if level == 1 else 13)

    def derivation() -> Derivation:
        total = yield f"{a}*{b}", a * b
        if c:
            total = yield f"{total}+{c}", total + c
        return (yield f"{total}%{m}", total % m)

    prompt = f"({a}*{b}+{c})%{m}=?" if c else f"{a}*{b}%{m}=?"
    return Arithmetic("modulus", level, prompt, derivation)


def pair(level: int, rng: random.Random) -> Arithmetic:
    """The sum or difference of two products."""
    top = (6, 9, 12)[level - 1]
    a, b, c, d = (rng.randint(2, top) for _ in range(4))
    sign = "+" if level == 1 else rng.choice("+-")

    def derivation() -> Derivation:
        left = yield f"{a}*{b}", a * b
        right = yield f"{c}*{d}", c * d
        return (yield f"{left}{sign}{right}", left + right if sign == "+" else left - right)

    return Arithmetic("pair", level, f"{a}*{b}{sign}{c}*{d}=?", derivation)


def equation(level: int, rng: random.Random) -> Arithmetic:
    """Linear equations, the unknown on one side or on both."""
    x = rng.randint(2, (9, 19, 12)[level - 1])
    a, b = rng.randint(2, 9), rng.randint(2, 40)
    if level < 3:
        right = a * x + b

        def one_side() -> Derivation:
            rest = yield f"{right}-{b}", right - b
            return (yield f"{rest}/{a}", rest // a)

        return Arithmetic("equation", level, f"{a}*x+{b}={right},x=?", one_side)
    more = a + rng.randint(2, 6)
    right = a * x + b
    left = right - more * x

    def both_sides() -> Derivation:
        slope = yield f"{more}-{a}", more - a
        rest = yield f"{b}-{left}", b - left
        return (yield f"{rest}/{slope}", rest // (slope or 1))  # a mistaken slope may be 0

    shown = f"{more}*x{left:+d}" if left else f"{more}*x"
    return Arithmetic("equation", level, f"{shown}={a}*x+{b},x=?", both_sides)


FAMILIES = (chain, product, bracket, modulus, pair, equation)


def draw(split: Split, family: int, level: int, rng: random.Random) -> Arithmetic:
    """One problem of a family and level whose prompt belongs to the split."""
    while True:
        problem = FAMILIES[family](level, rng)
        if derive_seed("arithmetic", problem.prompt) % N_BUCKETS in SPLIT_BUCKETS[split]:
            return problem


def arithmetic_problems(split: Split, size: int, seed: int = 0) -> list[Problem]:
    """`size` distinct problems, spread evenly over families and levels, in mixed order.

    Raises ValueError for an unknown split, a size below 1, or more problems than a family and
    level has.
    """
    if split not in SPLIT_BUCKETS:
        raise ValueError(f"split={split!r}: choose one of {sorted(SPLIT_BUCKETS)}")
    if size < 1:
        raise ValueError(f"size={size}: ask for at least 1 problem")
    cells = [(family, level) for level in LEVELS for family in range(len(FAMILIES))]
    by_prompt: dict[str, Arithmetic] = {}
    for number, (family, level) in enumerate(cells):
        count = size // len(cells) + (number < size % len(cells))
        rng = random.Random(derive_seed("arithmetic", seed, split, family, level))
        _add_distinct(by_prompt, split, family, level, count, rng)
    chosen = list(by_prompt.values())
    random.Random(derive_seed("arithmetic", seed, split, "order")).shuffle(chosen)
    return [
        Problem(
            id=f"{item.family}-{item.level}:{item.prompt}",
            prompt=item.prompt,
            answer=str(item.answer),
            source=item.family,
            level=item.level,
        )
        for item in chosen
    ]


def _add_distinct(
    found: dict[str, Arithmetic],
    split: Split,
    family: int,
    level: int,
    count: int,
    rng: random.Random,
) -> None:
    """Add `count` problems of a family and level with prompts that `found` does not have."""
    wanted, fruitless = len(found) + count, 0
    while len(found) < wanted:
        problem = draw(split, family, level, rng)
        fruitless = fruitless + 1 if problem.prompt in found else 0
        if fruitless > PATIENCE:
            raise ValueError(
                f"{wanted - len(found)} of {count} distinct {split} problems of family "
                f"{problem.family} level {level} could not be found: ask for a smaller size"
            )
        found.setdefault(problem.prompt, problem)

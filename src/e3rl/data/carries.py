"""Chains of sums whose easy way drops the carry: the embedded default.

A problem applies one to four operations to a number, `((81-48)*3)+29=?`. Each operation can be
done in two ways. The long way writes the units first and is right. The short way writes the result
at once and leaves out what goes over from the units to the tens: a carry of a sum or a product, a
borrow of a difference. It is right only where nothing goes over. Problems come in equal strata by
how many of their operations carry, and none can be solved by a chain that dropped a carry.

Splits are disjoint for every seed and size because the hash of a prompt decides its split.
"""

import random
from dataclasses import dataclass
from functools import cache

from e3rl.data.arithmetic import N_BUCKETS, SPLIT_BUCKETS, Split
from e3rl.data.problem import Problem
from e3rl.seeds import derive_seed

CARRIES = (0, 1, 2, 3)
LONGEST = 4  # operations
OPERANDS = range(11, 100)  # also what a chain starts from
FACTORS = range(2, 10)
GREATEST = 199  # of all values, those of wrong chains included
PATIENCE = 400  # fruitless draws in a row after which a stratum counts as used up


@dataclass(frozen=True)
class Chain:
    """A number and what is done to it, from left to right.

    Attributes:
        start: the number.
        operations: pairs of a sign, one of + - *, and an operand.
    """

    start: int
    operations: tuple[tuple[str, int], ...]

    @property
    def prompt(self) -> str:
        text = str(self.start)
        for place, (sign, operand) in enumerate(self.operations):
            text = f"({text}){sign}{operand}" if place else f"{text}{sign}{operand}"
        return f"{text}=?"

    def values(self, long: tuple[bool, ...]) -> list[int]:
        """The value after each operation, done the long way where `long` says so."""
        found = [self.start]
        for (sign, operand), whole in zip(self.operations, long, strict=True):
            dropped = 0 if whole else carried(found[-1], sign, operand)
            found.append(calculate(found[-1], sign, operand) - dropped)
        return found[1:]

    @property
    def right_values(self) -> list[int]:
        return self.values((True,) * len(self.operations))

    @property
    def answer(self) -> int:
        return self.right_values[-1]

    @property
    def carries(self) -> int:
        """How many operations carry or borrow where all before them were done right."""
        lefts = [self.start, *self.right_values]
        pairs = zip(lefts, self.operations, strict=False)
        return sum(carried(left, *operation) != 0 for left, operation in pairs)

    @property
    def is_strict(self) -> bool:
        """Whether every chain of ways stays within 0 and `GREATEST`, and every one that dropped
        something ends wrong."""
        right, wrong = self.start, set[int]()
        for operation in self.operations:
            wrong = {value for left in wrong for value in both_ways(left, *operation)}
            exact, short = both_ways(right, *operation)
            right, wrong = exact, wrong | {short} - {exact}
            if not all(0 <= value <= GREATEST for value in (right, *wrong)):
                return False
        return right not in wrong


def calculate(left: int, sign: str, right: int) -> int:
    if sign == "+":
        return left + right
    return left - right if sign == "-" else left * right


def both_ways(left: int, sign: str, right: int) -> tuple[int, int]:
    """The result, and what the short way makes of it."""
    exact = calculate(left, sign, right)
    return exact, exact - carried(left, sign, right)


def carried(left: int, sign: str, right: int) -> int:
    """What goes over from the units to the tens: 10 for each ten of them, -10 for a borrow."""
    units = calculate(left % 10, sign, right % 10)
    return 10 * (units // 10)


@cache
def possible(left: int, carrying: bool) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The signs that may follow a value, each with the operands with which it carries or not."""
    found = ((sign, operands(left, sign, carrying)) for sign in "+-*")
    return tuple((sign, allowed) for sign, allowed in found if allowed)


def operands(left: int, sign: str, carrying: bool) -> tuple[int, ...]:
    return tuple(
        right
        for right in (FACTORS if sign == "*" else OPERANDS)
        if 0 < calculate(left, sign, right) <= GREATEST
        and (carried(left, sign, right) != 0) == carrying
    )


def draw_chain(split: Split, carries: int, length: int, rng: random.Random) -> Chain | None:
    """One try: a strict chain with that many carries and operations whose prompt belongs to the
    split; None where it came to nothing."""
    start = value = rng.choice(OPERANDS)
    carrying = set(rng.sample(range(length), carries))
    operations = []
    for place in range(length):
        ways = possible(value, place in carrying)
        if not ways:
            return None
        sign, allowed = rng.choice(ways)
        operations.append((sign, rng.choice(allowed)))
        value = calculate(value, *operations[-1])
    chain = Chain(start, tuple(operations))
    return chain if split_of(chain.prompt) == split and chain.is_strict else None


def draw(split: Split, carries: int, rng: random.Random) -> Chain:
    """A strict chain with that many carries; all lengths that can have them are as likely."""
    length = rng.randint(max(1, carries), LONGEST)
    while True:
        chain = draw_chain(split, carries, length, rng)
        if chain:
            return chain


def split_of(prompt: str) -> str:
    bucket = derive_seed("carries", prompt) % N_BUCKETS
    return next(split for split, buckets in SPLIT_BUCKETS.items() if bucket in buckets)


def carry_problems(split: Split, size: int, seed: int = 0) -> list[Problem]:
    """`size` distinct problems, spread evenly over 0 to 3 carries, in mixed order.

    A problem's level is the number of its carries, and its prior the middle of the ranks that its
    level has among even strata. Raises ValueError for an unknown split, a size
    below 1, or more problems than a stratum has.
    """
    if split not in SPLIT_BUCKETS:
        raise ValueError(f"split={split!r}: choose one of {sorted(SPLIT_BUCKETS)}")
    if size < 1:
        raise ValueError(f"size={size}: ask for at least 1 problem")
    problems = []
    for carries in CARRIES:
        count = size // len(CARRIES) + (carries < size % len(CARRIES))
        rng = random.Random(derive_seed("carries", seed, split, carries))
        chains = distinct_chains(split, carries, count, rng)
        problems += [
            Problem(
                id=f"carries-{carries}:{chain.prompt}",
                prompt=chain.prompt,
                answer=str(chain.answer),
                source="carries",
                level=carries,
                prior=(carries + 0.5) / len(CARRIES),
            )
            for chain in chains
        ]
    random.Random(derive_seed("carries", seed, split, "order")).shuffle(problems)
    return problems


def distinct_chains(split: Split, carries: int, count: int, rng: random.Random) -> list[Chain]:
    """Chains with prompts that differ; raises ValueError where there are fewer than `count`."""
    found: dict[str, Chain] = {}
    fruitless = 0
    while len(found) < count:
        chain = draw(split, carries, rng)
        fruitless = fruitless + 1 if chain.prompt in found else 0
        if fruitless > PATIENCE:
            raise ValueError(
                f"{count - len(found)} of {count} distinct {split} problems with {carries} "
                "carries could not be found: ask for a smaller size"
            )
        found[chain.prompt] = chain
    return list(found.values())

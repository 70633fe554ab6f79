"""What the embedded policies were taught before reinforcement learning: imperfect on purpose."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from e3rl.data import carries
from e3rl.data.arithmetic import FAMILIES, LEVELS, Arithmetic, draw, follow
from e3rl.data.carries import CARRIES, Chain

WORDS = (" so ", " then ", " now ", " next ", " well ", " thus ", " hence ", " and ")
WORD_WEIGHTS = tuple(1 / (place + 1) for place in range(len(WORDS)))
BOX_OPEN, BOX_CLOSE = " \\boxed{", "}"
P_LONG = {"+": 0.25, "-": 0.15, "*": 0.08}  # of chains: how often an operation is done in full
P_BARE = 0.05  # of chains: answers that show no step
MISTAKES = (-10, -5, -3, -2, -1, 1, 2, 3, 5, 10)
P_MISTAKE, P_SWAP, P_DIRECT = 0.1, 0.3, 0.2  # of arithmetic


def demonstrate_chain(chain: Chain, rng: random.Random) -> str:
    """A completion in which every operation is done the long or the short way, by chance."""
    bare = rng.random() < P_BARE
    ways = tuple(rng.random() < P_LONG[sign] for sign, _ in chain.operations)
    shown, left = "", chain.start
    for (sign, operand), long, value in zip(
        chain.operations, ways, chain.values(ways), strict=True
    ):
        units = f"{word(rng)}{units_of(left, sign, operand)}" if long else ""
        shown += f"{units}{word(rng)}{left}{sign}{operand}={value}"
        left = value
    return f"{'' if bare else shown}{BOX_OPEN}{left}{BOX_CLOSE}"


def units_of(left: int, sign: str, right: int) -> str:
    """The units' own operation, ten more on the left where they borrow."""
    first, second = left % 10, right % 10
    if sign == "-" and first < second:
        first += 10
    return f"{first}{sign}{second}={carries.calculate(first, sign, second)}"


def demonstrate_arithmetic(problem: Arithmetic, rng: random.Random) -> str:
    """A completion with connectives, swaps, mistakes that carry on, and steps left out."""
    direct = rng.random() < P_DIRECT
    steps = follow(
        problem.derivation(),
        lambda value: value + rng.choice(MISTAKES) if rng.random() < P_MISTAKE else value,
    )
    shown = "" if direct else "".join(_step(*step, rng) for step in steps[:-1])
    return f"{shown}{BOX_OPEN}{steps[-1][1]}{BOX_CLOSE}"


def _step(expression: str, value: int, rng: random.Random) -> str:
    for sign in "+*":
        left, found, right = expression.partition(sign)
        if found and right.isdigit() and left.isdigit() and rng.random() < P_SWAP:
            expression = f"{right}{sign}{left}"
    return f"{word(rng)}{expression}={value}"


def word(rng: random.Random) -> str:
    return rng.choices(WORDS, WORD_WEIGHTS)[0]


def draw_chain(rng: random.Random) -> tuple[str, str]:
    chain = carries.draw("warm_start", rng.choice(CARRIES), rng)
    return chain.prompt, demonstrate_chain(chain, rng)


def draw_arithmetic(rng: random.Random) -> tuple[str, str]:
    problem = draw("warm_start", rng.randrange(len(FAMILIES)), rng.choice(LEVELS), rng)
    return problem.prompt, demonstrate_arithmetic(problem, rng)


@dataclass(frozen=True)
class Task:
    """What a policy is warmed up on.

    Attributes:
        demonstrate: draws a prompt of the `warm_start` split and a completion.
        typical_length: tokens of a completion.
    """

    demonstrate: Callable[[random.Random], tuple[str, str]]
    typical_length: int


TASKS = {"carries": Task(draw_chain, 32), "arithmetic": Task(draw_arithmetic, 20)}

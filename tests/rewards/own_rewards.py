"""Reward functions such as a user writes, importable by worker processes."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from e3rl.rewards.functions import Score


def exact(completion: str, answer: str) -> float:
    return float(completion == answer)


def half(completion: str, answer: str) -> float:
    return 0.5


def close(completion: str, answer: str, tolerance: float, **row: Any) -> float:
    return float(abs(float(completion) - float(answer)) <= tolerance)


def told(completion: str, answer: str, **row: Any) -> float:
    return float(completion == ", ".join(sorted(row)))


def short(completion: str, answer: str) -> Score:
    return Score(
        1 / len(completion), correct=len(completion) < 3, parts={"letters": len(completion)}
    )


def in_groups(
    completions: Sequence[str], answers: Sequence[str], level: Sequence[int]
) -> list[float]:
    """Pays the size of the group that it was called with."""
    assert len(completions) == len(answers) == len(level)
    if "hang" in completions:
        time.sleep(60)
    if "die" in completions:
        os._exit(3)
    return [float(len(completions))] * len(completions)


def too_few(completions: Sequence[str], answers: Sequence[str]) -> list[float]:
    return [1.0]


def text(completion: str, answer: str) -> str:
    return "good"


def near(completion: str, answer: str) -> Any:
    """As `np.isclose` answers: no number of Python's."""
    return np.bool_(completion == answer)


def says_no(completion: str, answer: str) -> Score:
    return Score(1.0, correct="no")  # type: ignore[arg-type]


def fails(completion: str, answer: str) -> float:
    return 1.0 / len(completion.strip())


def talks(completion: str, answer: str) -> float:
    print("judging", completion * 100)
    print("and again", file=sys.stderr)
    return float(completion == answer)


not_a_function = 3

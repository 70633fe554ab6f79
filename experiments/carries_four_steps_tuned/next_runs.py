"""Which runs tune the arms with four optimiser steps a batch, and what has been chosen so far.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of runs on seeds 236 to 245, every arm at its rate
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

Every learning rate runs with seed 51, the two best also with seed 52, and of these the one with the
higher mean pass@1 at T = 1 is taken (`../carries_tuned/tuning.py`). The highest rate, at which
other losses collapsed, runs last. Then, at that rate and by the same rule, the coefficients of
those arms that have one of their own.
"""

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "carries_tuned"))

from tuning import Choice, Point, Scores, at_rates, choose, main  # noqa: E402

ARMS = {
    "budget_cool": "cells/budget_cool",
    "cool": "shootout/cool",
    "budget": "budget",
    "e3": "e3",
    "dapo": "dapo",
}
RATES = (5e-5, 1e-4, 2e-4)
LAST = 4e-4
FRESH = range(236, 246)


def keyed(key: str, *values: float) -> dict[str, tuple[str, ...]]:
    return {f"{value:g}": (f"{key}={value:g}",) for value in values}


def bounds(*pairs: tuple[int, int]) -> dict[str, tuple[str, ...]]:
    return {f"{a}-{b}": (f"budget.n_low={a}", f"budget.n_high={b}") for a, b in pairs}


OWN = {  # values beside the one that an arm has where it names none: T = .8, 4 to 12, 1.28
    "cool": keyed("temperature.temperature", 0.7, 0.9),
    "budget": bounds((6, 10), (2, 14)),
    "dapo": keyed("loss.surrogate.clip_high", 0.2, 0.4),
}


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs."""
    return {arm: tune_arm(arm, scores) for arm in ARMS}


def tune_arm(arm: str, scores: Scores) -> Choice:
    """The best of three rates, then of these and the highest."""
    three = choose(points(arm)[:-1], scores)
    rate = choose(points(arm), scores) if three.best else three
    return choose(coefficients(rate.best), scores) if rate.best else rate


def points(arm: str) -> list[Point]:
    return at_rates(Point(arm, ARMS[arm]), (*RATES, LAST))


def coefficients(point: Point) -> list[Point]:
    """A point with each value of its arm's own coefficient, the one that it has first."""
    values = OWN.get(point.arm, {}).items()
    return [point, *(replace(point, value=value, overrides=keys) for value, keys in values)]


def tried(scores: Scores) -> list[Point]:
    every = (point for arm in ARMS for rate in points(arm) for point in coefficients(rate))
    return [point for point in every if point.name in scores]


if __name__ == "__main__":
    main(HERE, __doc__, tune_all, tried, FRESH)

"""Which runs tune the arms with four optimiser steps a batch, and what has been chosen so far.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of runs on seeds 236 to 245, every arm at its rate
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

Every learning rate runs with seed 51, the two best also with seed 52, and of these the one with the
higher mean pass@1 at T = 1 is taken (`../carries_tuned/tuning.py`). The highest rate, at which
other losses collapsed, runs last.
"""

import sys
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


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs."""
    return {arm: tune_arm(arm, scores) for arm in ARMS}


def tune_arm(arm: str, scores: Scores) -> Choice:
    """The best of three rates, then of these and the highest."""
    three = choose(points(arm)[:-1], scores)
    return choose(points(arm), scores) if three.best else three


def points(arm: str) -> list[Point]:
    return at_rates(Point(arm, ARMS[arm]), (*RATES, LAST))


def tried(scores: Scores) -> list[Point]:
    return [point for arm in ARMS for point in points(arm) if point.name in scores]


if __name__ == "__main__":
    main(HERE, __doc__, tune_all, tried, FRESH)

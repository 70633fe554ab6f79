"""Which runs tune the losses, what has been chosen so far, and the fresh runs.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of the runs that compare
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

Every learning rate runs with seed 51, the two best also with seed 52, and of these the one with the
higher mean pass@1 at T = 1 is taken (`../carries_tuned/tuning.py`).
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "carries_tuned"))

from tuning import Choice, Point, Scores, at_rates, choose, main  # noqa: E402

LOSSES = ("rloo", "dr_grpo", "reinforce_pp")
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
FRESH = range(221, 226)


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs."""
    return {arm: choose(points(arm), scores) for arm in LOSSES}


def points(arm: str) -> list[Point]:
    return at_rates(Point(arm, f"losses/{arm}"), RATES)


def tried(scores: Scores) -> list[Point]:
    return [point for arm in LOSSES for point in points(arm) if point.name in scores]


if __name__ == "__main__":
    main(HERE, __doc__, tune_all, tried, FRESH)

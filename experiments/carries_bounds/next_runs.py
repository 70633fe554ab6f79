"""Which runs tune the bounds on ratios, what has been chosen so far, and the fresh runs.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of the runs that compare
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

GSPO's bounds are chosen at one learning rate with seed 51. Every learning rate runs with seed 51,
the two best also with seed 52, and of these the one with the higher mean pass@1 at T = 1 is taken
(`../carries_tuned/tuning.py`). `clip_higher` takes the rate of `four_steps`, its control.
"""

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "carries_tuned"))

from tuning import FIRST, Choice, Point, Scores, at_rates, choose, main  # noqa: E402

RATES = (5e-5, 1e-4, 2e-4, 4e-4)
RATE_OF_BOUNDS = 1e-4
BOUNDS = (3e-4, 3e-3, 3e-2)  # GSPO's published lower one, of a far larger model, and its multiples
FRESH = range(231, 236)
CLIP_HIGHER = "losses/clip_higher"


def points(arm: str) -> list[Point]:
    """Every point that tuning may run."""
    if arm != "gspo":
        return at_rates(Point(arm, f"losses/{arm}"), RATES)
    pairs = [Point(arm, "losses/gspo", f"{low:g}", gspo_bounds(low)) for low in BOUNDS]
    return [each for pair in pairs for each in at_rates(pair, RATES)]


def gspo_bounds(low: float) -> tuple[str, ...]:
    """The published pair, 3e-4 and 4e-4, or a multiple of it."""
    return (f"loss.surrogate.clip_low={low:g}", f"loss.surrogate.clip_high={4 / 3 * low:g}")


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs."""
    control = choose(points("four_steps"), scores)
    wider = control.best and replace(control.best, arm="clip_higher", experiment=CLIP_HIGHER)
    return {
        "four_steps": control,
        "clip_higher": Choice(best=wider),
        "gspo": tune_gspo(scores),
        "cispo": choose(points("cispo"), scores),
    }


def tune_gspo(scores: Scores) -> Choice:
    """The best pair of bounds at one learning rate, then its best rate."""
    at_one_rate = [point for point in points("gspo") if point.rate == RATE_OF_BOUNDS]
    todo = [(point, FIRST) for point in at_one_rate if FIRST not in scores.get(point.name, {})]
    if todo:
        return Choice(todo=tuple(todo))
    best = max(at_one_rate, key=lambda point: scores[point.name][FIRST])
    return choose(at_rates(best, RATES), scores)


def tried(scores: Scores) -> list[Point]:
    arms = ("four_steps", "gspo", "cispo")
    return [point for arm in arms for point in points(arm) if point.name in scores]


if __name__ == "__main__":
    main(HERE, __doc__, tune_all, tried, FRESH)

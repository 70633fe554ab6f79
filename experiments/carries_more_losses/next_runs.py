"""Which runs tune the losses, and what has been chosen so far.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --chosen  what every arm gets
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

Every learning rate runs with seed 51, the two best also with seed 52, and of these the one with the
higher mean pass@1 at T = 1 is taken (`../carries_tuned/tuning.py`). GSPO's bounds come before, with
the first seed alone.
"""

import argparse
import sys
from pathlib import Path

from e3rl.analysis.sources.runs import load_runs

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "carries_tuned"))

from tuning import (  # noqa: E402
    FIRST,
    Choice,
    Point,
    Scores,
    at_rates,
    choose,
    read_scores,
    tuning_table,
    write_table,
)

RATES = {1: (1e-4, 2e-4, 4e-4, 8e-4), 4: (5e-5, 1e-4, 2e-4, 4e-4)}  # by optimiser steps a batch
STEPS = {"rloo": 1, "dr_grpo": 1, "reinforce_pp": 1, "four_steps": 4, "gspo": 4, "cispo": 4}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", type=Path)
    options.add_argument("--chosen", action="store_true")
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    there = load_runs(asked.runs) if any(asked.runs.glob("*/metrics.jsonl*")) else []
    scores = read_scores(there)
    choices = {arm: tune(arm, scores) for arm in STEPS}
    best = [choice.best for choice in choices.values() if choice.best]
    if asked.chosen:
        print(*(point.name for point in best), sep="\n")
    elif asked.table:
        points = [p for arm in STEPS for p in tried(arm) if p.name in scores]
        write_table(tuning_table(points, best, scores), HERE)
    else:
        todo = [pair for each in choices.values() for pair in each.todo]
        print("".join(f"{point.run(seed, point.name)}\n" for point, seed in todo), end="")


def tune(arm: str, scores: Scores) -> Choice:
    """The best of four learning rates, with the bounds chosen before."""
    candidates = tried(arm)
    if arm == "gspo":
        bounds = [point for point in candidates if point.rate == 1e-4]
        todo = [(point, FIRST) for point in bounds if FIRST not in scores.get(point.name, {})]
        if todo:
            return Choice(todo=tuple(todo))
        taken = max(bounds, key=lambda point: scores[point.name][FIRST]).value
        candidates = [point for point in candidates if point.value == taken]
    return choose(candidates, scores)


def tried(arm: str) -> list[Point]:
    """Every point that tuning may run."""
    points = [Point(arm, f"losses/{arm}")]
    if arm == "gspo":
        points = [
            Point(arm, f"losses/{arm}", f"{low:g}", bounds(low)) for low in (3e-4, 3e-3, 3e-2)
        ]
    return [each for point in points for each in at_rates(point, RATES[STEPS[arm]])]


def bounds(low: float) -> tuple[str, ...]:
    """GSPO's clip, the published pair or a multiple of it."""
    return (f"loss.surrogate.clip_low={low:g}", f"loss.surrogate.clip_high={4 / 3 * low:g}")


if __name__ == "__main__":
    main()

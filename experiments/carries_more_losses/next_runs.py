"""Which runs tune the losses, what has been chosen so far, and the fresh runs.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of the runs that compare
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

Every learning rate runs with seed 51, the two best also with seed 52, and of these the one with the
higher mean pass@1 at T = 1 is taken (`../carries_tuned/tuning.py`).
"""

import argparse
import sys
from pathlib import Path

from e3rl.analysis.sources.runs import load_runs

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "carries_tuned"))

from tuning import (  # noqa: E402
    Choice,
    Point,
    Scores,
    at_rates,
    choose,
    read_scores,
    tuning_table,
    write_table,
)

LOSSES = ("rloo", "dr_grpo", "reinforce_pp")
RATES = (1e-4, 2e-4, 4e-4, 8e-4)
FRESH = range(221, 226)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", type=Path)
    options.add_argument("--fresh", action="store_true")
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    there = load_runs(asked.runs) if any(asked.runs.glob("*/metrics.jsonl*")) else []
    scores = read_scores(there)
    choices = tune_all(scores)
    best = [choice.best for choice in choices.values() if choice.best]
    if asked.table:
        tried = [p for arm in LOSSES for p in points(arm) if p.name in scores]
        write_table(tuning_table(tried, best, scores), HERE)
    elif asked.fresh:
        arms = [Point("grpo", "grpo"), *best]
        print(*(point.run(seed, point.arm) for seed in FRESH for point in arms), sep="\n")
    else:
        todo = [pair for each in choices.values() for pair in each.todo]
        print("".join(f"{point.run(seed, point.name)}\n" for point, seed in todo), end="")


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs."""
    return {arm: choose(points(arm), scores) for arm in LOSSES}


def points(arm: str) -> list[Point]:
    return at_rates(Point(arm, f"losses/{arm}"), RATES)


if __name__ == "__main__":
    main()

"""Which runs tune the arms, one after another, what has been chosen so far, and the fresh runs.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --fresh   overrides of the runs that compare
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

An arm's coefficient is chosen at the control's learning rate, then its rate: every value with seed
51, the two best also with seed 52, and of these the one with the higher mean pass@1 at T = 1.
"""

from pathlib import Path

from tuning import Choice, Point, Scores, at_rates, choose, main

FRESH = range(111, 116)
RATES = (2e-4, 1e-4, 4e-4, 8e-4)  # the control's first


def points(arm: str, experiment: str, key: str, *values: float) -> list[Point]:
    return [Point(arm, experiment, f"{v:g}", (f"{key}={v:g}",)) for v in values]


def bounds(low: int, high: int) -> Point:
    keys = (f"budget.n_low={low}", f"budget.n_high={high}")
    return Point("budget", "budget", f"{low}-{high}", keys)


ARMS = {
    "grpo_er": points("grpo_er", "grpo_er", "loss.entropy_coef", 0.005, 0.02, 0.05),
    "constant": points("constant", "hot", "temperature.temperature", 0.8, 0.9, 1.2),
    "ts": [
        Point("ts", "ts", "initial", ("temperature.target=null",)),
        *points("ts", "ts", "temperature.target", 0.2, 0.27),
    ],
    "ts_an": points("ts_an", "ts_an", "temperature.annealing.eta", 0.9, 0.8, 0.7),
    "budget": [bounds(6, 10), bounds(4, 12), bounds(2, 14)],
    "dapo": points("dapo", "dapo", "loss.surrogate.clip_high", 0.28, 0.2, 0.4),
}


def tune_all(scores: Scores) -> dict[str, Choice]:
    """By arm, what it gets or the runs that it needs; e3 takes its parts' coefficients."""
    coefficients = {arm: choose(candidates, scores) for arm, candidates in ARMS.items()}
    budget, schedule = coefficients["budget"].best, coefficients["ts_an"].best
    found = {arm: tune_rate(choice, scores) for arm, choice in coefficients.items()}
    if budget and schedule:
        value = f"{budget.value}_{schedule.value}"
        e3 = Point("e3", "e3", value, budget.overrides + schedule.overrides)
        found["e3"] = tune_rate(Choice(best=e3), scores)
    return found


def tune_rate(coefficient: Choice, scores: Scores) -> Choice:
    """The best of four learning rates."""
    if coefficient.best is None:
        return coefficient
    return choose(at_rates(coefficient.best, RATES), scores)


def all_points(scores: Scores) -> list[Point]:
    """Every point that has a score, by arm and rate."""
    at_controls = [point for candidates in ARMS.values() for point in candidates]
    values = {name.removeprefix("e3_").partition("_lr_")[0] for name in scores if name[:3] == "e3_"}
    at_controls += [Point("e3", "e3", value) for value in sorted(values)]
    points = [tried for point in at_controls for tried in at_rates(point, RATES)]
    arms = [*ARMS, "e3"]
    points.sort(key=lambda point: (arms.index(point.arm), point.rate))
    return [point for point in points if point.name in scores]


if __name__ == "__main__":
    main(Path(__file__).parent, __doc__, tune_all, all_points, FRESH)

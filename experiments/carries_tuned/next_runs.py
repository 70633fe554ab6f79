"""Which runs tune the arms, one after another, what has been chosen so far, and the fresh runs.

    next_runs.py RUNS           the next runs' overrides, a line each
    next_runs.py RUNS --chosen  what every arm gets
    next_runs.py RUNS --fresh   overrides of the runs that compare
    next_runs.py RUNS --table   writes results/tuning.csv and the table of README.md

An arm's coefficient is chosen at the control's learning rate, then its rate: every value with seed
51, the two best also with seed 52, and of these the one with the higher mean pass@1 at T = 1.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import pandas as pd

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.page.study import insert_table
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown

HERE = Path(__file__).parent

FIRST, SECOND = 51, 52
FRESH = range(111, 116)
CONTROLS_RATE = 2e-4
OTHER_RATES = (1e-4, 4e-4, 8e-4)
Overrides = tuple[str, ...]
Scores = Mapping[str, Mapping[int, float]]  # pass@1 by a point's name and seed


@dataclass(frozen=True)
class Point:
    """An arm with one value of its coefficient and one learning rate."""

    arm: str
    experiment: str
    value: str = ""
    overrides: Overrides = ()
    rate: float = CONTROLS_RATE

    @property
    def name(self) -> str:
        return "_".join(part for part in (self.arm, self.value, f"lr_{self.rate:g}") if part)

    def run(self, seed: int, name: str) -> str:
        """What makes this run, as overrides."""
        own = (f"experiment={self.experiment}", f"name={name}", *self.overrides)
        return " ".join((f"++seed={seed}", f"++module.optimizer.lr={self.rate:g}", *own))


@dataclass(frozen=True)
class Choice:
    """The point chosen, or the runs that are needed first."""

    best: Point | None = None
    todo: tuple[tuple[Point, int], ...] = ()


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


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("runs", type=Path)
    options.add_argument("--chosen", action="store_true")
    options.add_argument("--fresh", action="store_true")
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    there = load_runs(asked.runs) if any(asked.runs.glob("*/metrics.jsonl*")) else []
    scores = read_scores(there)
    choices = tune_all(scores)
    best = [Point("grpo", "grpo")] + [each.best for each in choices.values() if each.best]
    if asked.chosen:
        print(*(point.name for point in best), sep="\n")
    elif asked.table:
        write_table(tuning_table(scores))
    elif asked.fresh:
        print(*(point.run(seed, point.arm) for seed in FRESH for point in best), sep="\n")
    else:
        todo = [pair for each in choices.values() for pair in each.todo]
        print("".join(f"{point.run(seed, point.name)}\n" for point, seed in todo), end="")


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
    candidates = [coefficient.best, *(replace(coefficient.best, rate=r) for r in OTHER_RATES)]
    return choose(candidates, scores)


def choose(candidates: list[Point], scores: Scores) -> Choice:
    """Every point with the first seed, the two best with the second: the best mean of these two."""
    todo = [(point, FIRST) for point in candidates if FIRST not in scores.get(point.name, {})]
    if todo:
        return Choice(todo=tuple(todo))
    two = sorted(candidates, key=lambda point: scores[point.name][FIRST], reverse=True)[:2]
    todo = [(point, SECOND) for point in two if SECOND not in scores[point.name]]
    if todo:
        return Choice(todo=tuple(todo))
    return Choice(max(two, key=lambda point: mean(scores[point.name][s] for s in (FIRST, SECOND))))


def read_scores(runs: list[Run]) -> dict[str, dict[int, float]]:
    """pass@1 at temperature 1 on the last validation, in %, of the runs that have ended."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.summary is None:
            continue
        last = find_evaluation([run], "t1", "last")
        if last is None:
            raise ValueError(f"{run.path} has no evaluation t1")
        found.setdefault(run.name, {})[run.seed] = 100 * pass_table(last.seeds[0], [1])[1].mean()
    return found


def tuning_table(scores: Scores) -> pd.DataFrame:
    """A row for every point that ran, its pass@1 by seed in %, and whether it was chosen."""
    choices = tune_all(scores)
    best = {choice.best.name for choice in choices.values() if choice.best}
    rows = []
    for point in sorted(all_points(scores), key=lambda p: (list(choices).index(p.arm), p.rate)):
        by_seed = {f"seed {seed}": scores[point.name].get(seed) for seed in (FIRST, SECOND)}
        facts = {"arm": point.arm, "coefficient": point.value, "learning rate": point.rate}
        rows.append({**facts, **by_seed, "chosen": point.name in best})
    return pd.DataFrame(rows)


def all_points(scores: Scores) -> list[Point]:
    """Every point that has a score."""
    at_controls = [point for candidates in ARMS.values() for point in candidates]
    values = {name.removeprefix("e3_").partition("_lr_")[0] for name in scores if name[:3] == "e3_"}
    at_controls += [Point("e3", "e3", value) for value in sorted(values)]
    rates = (CONTROLS_RATE, *OTHER_RATES)
    points = [replace(point, rate=rate) for point in at_controls for rate in rates]
    return [point for point in points if point.name in scores]


def write_table(table: pd.DataFrame) -> None:
    (HERE / "results").mkdir(exist_ok=True)
    table.to_csv(HERE / "results" / "tuning.csv", index=False, float_format="%.6g")
    readme = HERE / "README.md"
    shown = as_markdown(table_cells(table), ("arm", "coefficient"))
    readme.write_text(insert_table(readme.read_text(encoding="utf-8"), "tuning", shown))


def table_cells(table: pd.DataFrame) -> Cells:
    body = [
        [
            *(row["arm"], str(row["coefficient"]), f"{row['learning rate']:g}"),
            *("" if pd.isna(row[s]) else f"{row[s]:.1f}" for s in ("seed 51", "seed 52")),
            "chosen" if row["chosen"] else "",
        ]
        for row in table.to_dict("records")
    ]
    note = "pass@1 at T = 1 after 128 steps, %, of 1,024 problems for tuning, 8 samples each."
    return Cells([*table.columns[:-1], ""], body, note)


if __name__ == "__main__":
    main()

"""The rule by which studies tune an arm: every value with one seed, the two best with another."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean

import pandas as pd

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns

FIRST, SECOND = 51, 52
Overrides = tuple[str, ...]
Scores = Mapping[str, Mapping[int, float]]  # pass@1 by a point's name and seed, in %


@dataclass(frozen=True)
class Point:
    """An arm with one value of its coefficient and one learning rate."""

    arm: str
    experiment: str
    value: str = ""
    overrides: Overrides = ()
    rate: float = 2e-4  # the control's

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


def main(
    study: Path,
    words: str | None,
    tune_all: Callable[[Scores], dict[str, Choice]],
    tried: Callable[[Scores], Iterable[Point]],
    seeds: Sequence[int],
) -> None:
    """The command of a study that tunes; `words` say what it does, `tried` gives the rows of its
    table in their order, `seeds` are of the fresh runs."""
    options = argparse.ArgumentParser(description=words)
    options.add_argument("runs", type=Path)
    options.add_argument("--fresh", action="store_true")
    options.add_argument("--table", action="store_true")
    asked = options.parse_args()
    there = load_runs(asked.runs) if any(asked.runs.glob("*/metrics.jsonl*")) else []
    scores = read_scores(there)
    choices = tune_all(scores)
    best = [Point("grpo", "grpo")] + [each.best for each in choices.values() if each.best]
    if asked.table:
        write_table(tuning_table(tried(scores), best, scores), study)
    elif asked.fresh:
        print(*(point.run(seed, point.arm) for seed in seeds for point in best), sep="\n")
    else:
        todo = [pair for each in choices.values() for pair in each.todo]
        print("".join(f"{point.run(seed, point.name)}\n" for point, seed in todo), end="")


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


def at_rates(point: Point, rates: Iterable[float]) -> list[Point]:
    return [replace(point, rate=rate) for rate in rates]


def read_scores(runs: Iterable[Run]) -> dict[str, dict[int, float]]:
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


def tuning_table(points: Iterable[Point], chosen: Iterable[Point], scores: Scores) -> pd.DataFrame:
    """A row for every point, its pass@1 by seed in %, and whether it was chosen."""
    best = {point.name for point in chosen}
    rows = []
    for point in points:
        by_seed = {f"seed {seed}": scores[point.name].get(seed) for seed in (FIRST, SECOND)}
        facts = {"arm": point.arm, "coefficient": point.value, "learning rate": point.rate}
        rows.append({**facts, **by_seed, "chosen": point.name in best})
    return pd.DataFrame(rows)


def write_table(table: pd.DataFrame, study: Path) -> None:
    """Put the table into the study's results and README."""
    (study / "results").mkdir(exist_ok=True)
    table.to_csv(study / "results" / "tuning.csv", index=False, float_format="%.6g")
    readme = study / "README.md"
    shown = as_markdown(table_cells(table), ("arm", "coefficient"))
    write_tables(readme, {"tuning": shown})


def table_cells(table: pd.DataFrame) -> Cells:
    rows = [
        {
            "arm": row["arm"],
            "coefficient": "" if pd.isna(row["coefficient"]) else str(row["coefficient"]),
            "learning rate": f"{row['learning rate']:g}",
            **{s: "" if pd.isna(row[s]) else f"{row[s]:.1f}" for s in ("seed 51", "seed 52")},
            "": "chosen" if row["chosen"] else "",
        }
        for row in table.to_dict("records")
    ]
    note = "pass@1 at T = 1 after 128 steps, %, of 1,024 problems for tuning, 8 samples each."
    return drop_empty_columns(rows, note)

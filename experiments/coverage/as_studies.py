"""How often intervals hold the truth in studies like the recorded ones, by simulation.

    .venv/bin/python experiments/coverage/as_studies.py            # ten minutes on one core

`models.Model` is fitted to a control and an arm of a recorded study: to their mean pass@1, and to
what problems, seeds and the rest have of the variance of the control and of the paired difference.
Studies of 5 and of 10 seeds are drawn from it with the problems and rollouts that the study had,
and from two of the fitted models with other luck of the same variance (`models.py`). Writes
studies.json and two tables of README.md.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from models import FAILURES, LONG, NORMAL, RARE, Model, Reals
from simulate import count_hits, draw_means, draw_robust

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.page.study import insert_table
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.power import variance_components

FOLDER = Path(__file__).parent
STUDIES = FOLDER.parent
SEEDS = (5, 10)
WORDS = ("interval", "luck")  # columns of words
CONTROLS, ROLLOUTS = "carries_core", 16  # whose grpo all are compared with
FITTED = (
    *(("carries_core", arm) for arm in ("budget", "e3", "dapo")),
    *(("carries_shootout", arm) for arm in ("vcrl", "pass_at_4")),
)
OTHERWISE = (("carries_core", "budget"), ("carries_shootout", "pass_at_4"))
LUCKS = {NORMAL: FITTED, LONG: OTHERWISE, RARE: OTHERWISE, FAILURES: OTHERWISE}  # what is drawn
ROUNDS, FIT_SEEDS, FIT_PROBLEMS = 40, 100, 2000


@dataclass(frozen=True)
class Moments:
    """Mean pass@1 of control and arm, and parts of the variance: of seeds, problems and the rest,
    of the control and of the paired difference."""

    means: tuple[float, float]
    control: tuple[float, float, float]
    difference: tuple[float, float, float]


def moments_of(control: Reals, arm: Reals) -> Moments:
    """Of pass@1 (S, P), seeds in one order."""
    parts = [variance_components(table) for table in (control, arm - control)]
    own, paired = ((p.seed, p.problem, p.residual) for p in parts)
    return Moments((float(control.mean()), float(arm.mean())), own, paired)


def fit(wanted: Moments, rollouts: int, n_problems: int) -> Model:
    """The model with these moments; what a finite sample makes of 0 stays small.

    Every parameter moves the part of the variance that is its own, so each is scaled by the root
    of what is wanted over what a large draw has, until all agree.
    """
    model = Model(0.0, gain=0.0, seed=0.3, rollouts=rollouts, n_problems=FIT_PROBLEMS)
    for _ in range(ROUNDS):
        rng = np.random.default_rng(0)
        problems = model.draw_problems(rng)
        control, arm = model.score(model.draw_runs(rng, problems, FIT_SEEDS), 1)
        got = moments_of(control, arm)
        level = logit(wanted.means[0]) - logit(got.means[0])
        gap = logit(wanted.means[1]) - logit(got.means[1]) - level
        apart = scale(wanted.difference[0], got.difference[0]) ** 2
        model = replace(
            model,
            mean=model.mean + level,
            gain=model.gain + gap,
            seed=model.seed * scale(wanted.control[0], got.control[0]),
            problem=model.problem * scale(wanted.control[1], got.control[1]),
            rest=model.rest * scale(wanted.control[2], got.control[2]),
            problem_gain=model.problem_gain * scale(wanted.difference[1], got.difference[1]),
            correlation=min(0.99, max(0.0, 1 - (1 - model.correlation) * apart)),
        )
    return replace(model, n_problems=n_problems)


def logit(rate: float) -> float:
    return float(np.log(rate / (1 - rate)))


def scale(wanted: float, got: float) -> float:
    """A step towards the wanted part of a variance, of 1.5 at most."""
    if wanted <= 0 or got <= 0:
        return 0.9
    return float(np.clip((wanted / got) ** 0.4, 2 / 3, 1.5))


def table_of(runs: Sequence[Run]) -> Reals:
    """pass@1 (S, P) at temperature 1 of the last validation."""
    found = find_evaluation(list(runs), "t1", "last")
    assert found is not None
    return np.array([pass_table(seed, [1])[1].sort_index() for seed in found.seeds])


def simulate(draws: int) -> list[dict[str, Any]]:
    rows = []
    controls = group_by_arm(load_runs(STUDIES / CONTROLS / "runs"))["grpo"]
    for study, arm in FITTED:
        runs = group_by_arm(load_runs(STUDIES / study / "runs"))[arm]
        seeds = {run.seed for run in runs}
        control, other = table_of([run for run in controls if run.seed in seeds]), table_of(runs)
        model = fit(moments_of(control, other), ROLLOUTS, control.shape[1])
        print(study, arm, model, flush=True)
        for luck in (each for each, fitted in LUCKS.items() if (study, arm) in fitted):
            facts = {"study": study, "arm": arm, "luck": luck}
            rows += [facts | row for row in count_cells(replace(model, luck=luck), draws)]
    return rows


def count_cells(model: Model, draws: int) -> Iterator[dict[str, Any]]:
    """Rows of the intervals that hold the truth, of 5 and 10 seeds."""
    for n in SEEDS:
        for part, draw in ((1.0, draw_means), (0.5, draw_robust)):
            number = max(2, round(part * draws))
            for measure, covered in count_hits(draw(model, n), number).items():
                row = {"measure": measure, "n_seeds": n, "draws": number, "covered": covered}
                print(model.luck, *row.values(), flush=True)
                yield row


def table_cells(every: list[dict[str, Any]]) -> Cells:
    """A row per interval, a column per study, arm and number of seeds, of even luck."""
    rows = [row for row in every if row["luck"] == NORMAL]
    columns = list(dict.fromkeys((r["study"], r["arm"], r["n_seeds"]) for r in rows))
    found = {(r["measure"], r["study"], r["arm"], r["n_seeds"]): r["covered"] for r in rows}
    header = ["interval", *(f"{study}, {arm}, {n} seeds" for study, arm, n in columns)]
    body = [
        [measure, *(f"{100 * found[measure, *column]:.1f}" for column in columns)]
        for measure in dict.fromkeys(r["measure"] for r in rows)
    ]
    few, many = (of(r["draws"] for r in rows) for of in (min, max))
    note = (
        "How many of 100 drawn 95 % intervals hold the truth, in studies from models fitted to a "
        f"recorded control and arm. {many:,} studies a cell, {few:,} of IQM and P(better)."
    )
    return Cells(header, body, note)


def by_kind(
    every: list[dict[str, Any]], key: str, kinds: Sequence[str], columns: Sequence[Any]
) -> tuple[list[str], list[list[str]]]:
    """Header and rows: one per interval and kind, a column per study, arm and number of seeds."""
    found = {
        (r["measure"], r[key], r["study"], r["arm"], r["n_seeds"]): r["covered"] for r in every
    }
    header = ["interval", key, *(f"{study}, {arm}, {n} seeds" for study, arm, n in columns)]
    body = [
        [measure, kind, *(f"{100 * found[measure, kind, *column]:.1f}" for column in columns)]
        for measure in dict.fromkeys(r["measure"] for r in every)
        for kind in kinds
    ]
    return header, body


def luck_cells(every: list[dict[str, Any]]) -> Cells:
    """A row per interval and kind of luck, where a model was drawn from with all of them."""
    columns = [(*key, n) for key in OTHERWISE for n in SEEDS]
    header, body = by_kind(every, "luck", list(LUCKS), columns)
    note = (
        "How many of 100 drawn 95 % intervals hold the truth. Luck of the same variance, on the "
        "scale of logits: normal; long, Student's t with 3 degrees of freedom; rare, half normal "
        "and half by one run in ten that is far below the rest; failures, by such runs alone."
    )
    return Cells(header, body, note)


def main() -> None:
    parser = argparse.ArgumentParser(description="Count in studies like the recorded ones.")
    parser.add_argument("--draws", type=int, default=1000)
    rows = simulate(parser.parse_args().draws)
    (FOLDER / "studies.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    readme = FOLDER / "README.md"
    text = insert_table(readme.read_text(), "studies", as_markdown(table_cells(rows), WORDS))
    readme.write_text(insert_table(text, "luck", as_markdown(luck_cells(rows), WORDS)))


if __name__ == "__main__":
    main()

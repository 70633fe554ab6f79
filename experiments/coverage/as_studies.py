"""How often intervals hold the truth in studies like the recorded ones, by simulation.

    .venv/bin/python experiments/coverage/as_studies.py            # half an hour on one core

`models.Model` is fitted to a control and an arm of a recorded study: to their mean pass@1, and to
what problems, seeds and the rest have of the variance of the control and of the paired difference.
Studies of 5 and of 10 seeds are drawn from it with the problems and rollouts that the study had,
and from two of the fitted models with other luck of the same variance (`models.py`). Costs to reach
an accuracy are drawn along the mean curves that the study had; runs have no luck before training,
and their whole luck from the next validation on. Writes studies.json and two tables of README.md.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from models import FAILURES, LONG, NORMAL, RARE, Model, Reals, logistic
from simulate import Draw, Truths, draw_means, draw_robust, list_hits

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.statistics.crossing import crossing_interval, crossing_ratio, first_crossing
from e3rl.statistics.interval import Interval
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
POINTS_BETWEEN = 8  # of a validation and the next, at which curves are read


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


@dataclass(frozen=True)
class Curves:
    """Recorded validations at temperature 1: steps (V,), rollouts a problem (V,), and mean pass@1
    of control and arm (2, V)."""

    steps: Reals
    rollouts: list[int]
    means: Reals

    @property
    def target(self) -> float:
        """Half of the control's way up."""
        return float(self.means[0, [0, -1]].mean())


def curves_of(control: Sequence[Run], arm: Sequence[Run]) -> Curves:
    """Of the validations that every run has."""
    counts = control[0].counts
    steps = sorted(step for name, step in counts if name == "t1")
    means = [
        [
            np.mean([pass_table(run.counts["t1", step], [1])[1].mean() for run in runs])
            for step in steps
        ]
        for runs in (control, arm)
    ]
    rollouts = [int(counts["t1", step]["n"].min()) for step in steps]
    return Curves(np.array(steps, dtype=np.float64), rollouts, np.array(means))


def draw_reaching(model: Model, curves: Curves, n_seeds: int) -> Draw:
    """The control's cost to come half of its way up, and the arm's cost over that."""
    levels = np.array([[level_of(model, r, mean) for mean in curves.means[r]] for r in (0, 1)])
    last = len(curves.steps) - 1
    points = np.interp(
        np.arange(last * POINTS_BETWEEN + 1) / POINTS_BETWEEN, np.arange(last + 1), curves.steps
    )
    costs = [first_crossing(curves.steps, curve, curves.target) for curve in curves.means]
    truths: Truths = {"cost": costs[0], "ratio of costs": costs[1] / costs[0]}
    right = np.clip(np.searchsorted(curves.steps, points), 1, last)
    share = (points - curves.steps[right - 1]) / (curves.steps[right] - curves.steps[right - 1])

    def draw(rng: np.random.Generator) -> tuple[dict[str, Interval], Truths]:
        problems = model.draw_problems(rng) - np.array([[model.mean], [model.mean + model.gain]])
        luck, seen = model.draw_luck(rng, n_seeds), []
        for at, n in enumerate(curves.rollouts):
            logits = (problems + levels[:, at, None])[:, None] + luck * (at > 0)
            seen.append(rng.binomial(n, logistic(logits)) / n)
        table = np.stack(seen, axis=2)
        mixed = (1 - share[:, None]) * table[:, :, right - 1] + share[:, None] * table[:, :, right]
        found = {"cost": crossing_interval(points, mixed[0], curves.target)}
        ratio = crossing_ratio(points, mixed[1], mixed[0], curves.target, paired_seeds=True)
        return found | ({"ratio of costs": ratio.interval} if ratio else {}), truths

    return draw


def level_of(model: Model, arm: int, mean: float) -> float:
    """The level on the scale of logits at which arm 0 or 1 has this mean pass@1."""
    low, high = -12.0, 12.0
    for _ in range(50):
        middle = (low + high) / 2
        below = replace(model, mean=middle, gain=0.0).truth(arm, 1) < mean
        low, high = (middle, high) if below else (low, middle)
    return high


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
        paired = [run for run in controls if run.seed in seeds]
        control, other, curves = table_of(paired), table_of(runs), curves_of(paired, runs)
        model = fit(moments_of(control, other), ROLLOUTS, control.shape[1])
        print(study, arm, model, flush=True)
        for luck in (each for each, fitted in LUCKS.items() if (study, arm) in fitted):
            facts = {"study": study, "arm": arm, "luck": luck}
            rows += [facts | row for row in count_cells(replace(model, luck=luck), curves, draws)]
    return rows


def count_cells(model: Model, curves: Curves, draws: int) -> Iterator[dict[str, Any]]:
    """Rows of the intervals that hold the truth, of 5 and 10 seeds; costs of even luck alone."""
    for n in SEEDS:
        made = [(1.0, draw_means(model, n)), (0.5, draw_robust(model, n))]
        if model.luck == NORMAL:
            made.append((1.0, draw_reaching(model, curves, n)))
        for part, draw in made:
            number = max(2, round(part * draws))
            for measure, held in list_hits(draw, number).items():
                covered = float(np.mean(held))
                row = {"measure": measure, "n_seeds": n, "draws": len(held), "covered": covered}
                print(model.luck, *row.values(), flush=True)
                yield row


def table_cells(every: list[dict[str, Any]]) -> Cells:
    """A row per interval, a column per study, arm and number of seeds, of even luck."""
    rows = [row for row in every if row["luck"] == NORMAL]
    columns = list(dict.fromkeys((r["study"], r["arm"], r["n_seeds"]) for r in rows))
    found = {(r["measure"], r["study"], r["arm"], r["n_seeds"]): r["covered"] for r in rows}
    header = ["interval", *(f"{study}, {arm}, {n} seeds" for study, arm, n in columns)]
    body = [
        [measure, *(f"{100 * found[measure, *column]:.0f}" for column in columns)]
        for measure in dict.fromkeys(r["measure"] for r in rows)
    ]
    few, many = (of(r["draws"] for r in rows) for of in (min, max))
    note = (
        "How many of 100 drawn 95 % intervals hold the truth, in studies from models fitted to a "
        f"recorded control and arm. {many:,} studies a cell, {few:,} of IQM and P(better). Costs "
        "are those at which the control has come half of its way up."
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
        [measure, kind, *(f"{100 * found[measure, kind, *column]:.0f}" for column in columns)]
        for measure in dict.fromkeys(r["measure"] for r in every)
        for kind in kinds
    ]
    return header, body


def luck_cells(every: list[dict[str, Any]]) -> Cells:
    """A row per interval and kind of luck, where a model was drawn from with all of them."""
    columns = [(*key, n) for key in OTHERWISE for n in SEEDS]
    rare = {row["measure"] for row in every if row["luck"] == RARE}  # costs have normal luck alone
    rows = [row for row in every if row["measure"] in rare]
    header, body = by_kind(rows, "luck", list(LUCKS), columns)
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
    cells = {"studies": table_cells(rows), "luck": luck_cells(rows)}
    write_tables(readme, {name: as_markdown(each, WORDS) for name, each in cells.items()})


if __name__ == "__main__":
    main()

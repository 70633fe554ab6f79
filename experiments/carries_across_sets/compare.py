"""What an arm has beside GRPO on average over sets of seeds, with the set as the unit.

    .venv/bin/python experiments/carries_across_sets/compare.py    # tables, results/, the figure

A set is the seeds that one study ran first. Its difference is the mean over its seeds, problem by
problem; over sets and problems these are judged as seeds and problems are elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from forest import draw_sets
from numpy.typing import NDArray

from e3rl.analysis.figures.saved import save_figure
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.comparison import difference_columns
from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.families import LEVEL, NEITHER, judge_rows
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.measures.subsets import start_counts
from e3rl.analysis.page.study import read_study, write_tables
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns
from e3rl.analysis.tables.comparison_table import judged_texts
from e3rl.statistics.interval import Interval
from e3rl.statistics.means import (
    interval_of_another_set,
    mean_over_seeds_and_problems,
    mean_over_sets,
)

FOLDER = Path(__file__).parent
FINDINGS = FOLDER.parents[1] / "docs" / "results.md"
SETS = (
    *("carries_core", "carries_tuned", "carries_first_policies", "carries_budget"),
    *("carries_factorial", "carries_confirmation", "carries_other_problems", "carries_four_steps"),
    *("carries_budget_constants", "carries_four_steps_fresh"),
)
FIRST = SETS[0]  # the set that the others were asked after
OTHER_POLICIES = "carries_first_policies"  # every seed from a first policy of its own
ARMS = ("budget", "e3", "ts_an", "grpo_er", "dapo")
CONTROL = "grpo"
TUNED = {("carries_four_steps_fresh", arm): f"{arm}_tuned" for arm in ("budget", "dapo")}
ELSEWHERE = {  # seeds of a set that ran an arm on another make of processor alone
    ("carries_four_steps", "dapo"): "carries_four_steps_more",
    ("carries_four_steps", "grpo_er"): "carries_four_steps_left_out",
}
COMMON_TOKENS = 1_145_860
EASY = (0.5, 1.0)  # solved by the first policy that often
AXIS, EVALUATION = "tokens", "t1"
ENDS = ("low", "high")


Table = NDArray[np.float64]


class Endpoint(NamedTuple):
    """k of pass@k, whether it is read at equal tokens, and whether on easy problems alone."""

    name: str
    k: int
    at_tokens: bool
    easy: bool


ENDPOINTS = (
    Endpoint("pass@16", 16, at_tokens=False, easy=False),
    Endpoint("pass@1", 1, at_tokens=True, easy=False),
    Endpoint("pass@1, easy", 1, at_tokens=True, easy=True),
    Endpoint("pass@1 at the end", 1, at_tokens=False, easy=False),
)
DRAWN = tuple(endpoint.name for endpoint in ENDPOINTS[:3])
studies = cache(read_study)


class Pair(NamedTuple):
    """Runs of an arm and of its control of one set, of the same seeds."""

    arm: list[Run]
    control: list[Run]


def pair_of(name: str, arm: str) -> Pair | None:
    """None where a set lacks the arm."""
    arms = studies(FOLDER.parent / ELSEWHERE.get((name, arm), name)).arms
    own, base = arms.get(TUNED.get((name, arm), arm)), arms[CONTROL]
    if own is None:
        return None
    both = {run.seed for run in own} & {run.seed for run in base}
    return Pair(*([run for run in runs if run.seed in both] for runs in (own, base)))


@cache
def easy_problems() -> frozenset[str]:
    """Problems that the embedded first policy solves often, of all first validations."""
    validated = {
        f"{name}/{arm}": runs
        for name in SETS
        if name != OTHER_POLICIES
        for arm, runs in studies(FOLDER.parent / name).arms.items()
        if any((run.problems["rollout_step"] == 0).any() for run in runs)
    }
    counts = start_counts(validated)
    rates = counts["correct"] / counts["n"]
    return frozenset(str(problem) for problem in rates.index[rates.between(*EASY)])


def validated_on_the_way(run: Run) -> bool:
    """Whether a line from the middle of training to its end can be drawn."""
    return bool(run.problems.loc[run.problems["rollout_step"] > 0, "rollout_step"].nunique() > 1)


def differences_in(name: str, arm: str, endpoint: Endpoint) -> pd.DataFrame | None:
    """(S, P) of a set, by seed and problem; None where it has no such arm or endpoint."""
    pair = pair_of(name, arm)
    if pair is None or (endpoint.easy and name == OTHER_POLICIES):
        return None
    if endpoint.at_tokens and not all(map(validated_on_the_way, [*pair.arm, *pair.control])):
        return None
    tokens = min(COMMON_TOKENS, common_cost([*pair.arm, *pair.control], AXIS))
    cost = tokens if endpoint.at_tokens else math.inf
    mine, base = (scores_at(runs, EVALUATION, endpoint.k, AXIS, cost) for runs in pair)
    if mine is None or base is None:
        return None
    found = (mine.table - base.table).rename(columns=str)
    return found[[c for c in found if c in easy_problems()]] if endpoint.easy else found


def differences(arm: str, endpoint: Endpoint) -> dict[str, pd.DataFrame]:
    found = {name: differences_in(name, arm, endpoint) for name in SETS}
    return {name: table for name, table in found.items() if table is not None}


def on_one_set_of_problems(tables: Mapping[str, pd.DataFrame]) -> dict[str, Table]:
    """The tables with their problems in one order. Raises ValueError where these are unlike."""
    order = sorted(next(iter(tables.values())))
    if any(sorted(table) != order for table in tables.values()):
        raise ValueError(f"{', '.join(tables)}: sets were validated on unlike problems")
    return {name: table[order].to_numpy(dtype=np.float64) for name, table in tables.items()}


def bounds(name: str, found: Interval) -> Row:
    return {name: found.mean, f"{name}_low": found.low, f"{name}_high": found.high}


def average_row(arm: str, endpoint: Endpoint, tables: Mapping[str, pd.DataFrame]) -> Row:
    """An arm less the control over sets, with what `judge_rows` asks for."""
    sets = on_one_set_of_problems(tables)
    estimate = mean_over_sets(list(sets.values()))
    by_sets_alone = replace(estimate, df=min(estimate.df, len(sets) - 1))  # as a test takes it
    by_set = np.array([table.mean() for table in sets.values()])
    own = [table.mean(axis=1).var(ddof=1) / len(table) for table in sets.values()]
    later = [table for name, table in sets.items() if name != FIRST]
    comparison = f"{arm} less {CONTROL}, {endpoint.name}"
    return {
        **{"arm": arm, "measure": endpoint.name, "problems": sets[FIRST].shape[1]},
        "seeds": len(sets),  # the units that are judged: sets
        "seeds_of_sets": sum(map(len, sets.values())),
        **difference_columns(comparison, by_sets_alone, LEVEL, len(sets)),
        **bounds("difference", estimate.interval()),
        "sd_of_sets": float(by_set.std(ddof=1)),
        "sd_by_seeds": math.sqrt(np.mean(own)),
        **bounds("further", interval_of_another_set(list(sets.values()))),
        **bounds("without_first", mean_over_sets(later).interval()),
    }


def set_rows(arm: str, endpoint: Endpoint, tables: Mapping[str, pd.DataFrame]) -> list[Row]:
    """Each set by itself: over its seeds and problems."""
    return [
        {
            **{"arm": arm, "measure": endpoint.name, "set": name, "seeds": len(table)},
            **bounds("difference", mean_over_seeds_and_problems(table.to_numpy()).interval()),
        }
        for name, table in tables.items()
    ]


def points(row: Row, name: str) -> str:
    mean, low, high = (100 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def average_cells(rows: Sequence[Row]) -> Cells:
    """A row for each arm and endpoint."""
    cells = [
        {
            **{"arm": arm_label(row["arm"]), "measure": row["measure"]},
            **{"sets": str(row["seeds"]), "seeds": str(row["seeds_of_sets"])},
            **judged_texts(row),
            "a further set": " to ".join(f"{100 * row[f'further_{e}']:+.1f}" for e in ENDS),
            "sd of sets": f"{100 * row['sd_of_sets']:.1f}",
            "by seeds alone": f"{100 * row['sd_by_seeds']:.1f}",
            f"without {FIRST}": points(row, "without_first"),
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "Each arm less GRPO at T = 1; 95 % intervals over sets and problems, paired by seed and "
        f"problem. p after Holm's correction (exploratory: {len(rows)} comparisons). Detectable: "
        "as in other studies, of as many sets. A further set: where one more like these would come "
        "out in 95 of 100. sd: of the sets' differences, and what the luck of their seeds alone "
        "makes of it, points, which counts where it is more. pass@16 and at the end: after 128 "
        f"steps; else at equal tokens; easy: on the {len(easy_problems())} problems that the first "
        "policy solves in half or more.",
    )


def summary_cells(rows: Sequence[Row]) -> Cells:
    """A row for each arm, for the page of all findings: what is told is bold."""
    body = []
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm]
        sets = sorted(row["seeds"] for row in mine)
        ends = " to ".join(str(n) for n in dict.fromkeys((sets[0], sets[-1])))
        body.append([arm_label(arm), ends, *map(told, mine)])
    header = ["arm, less GRPO", "sets", *(endpoint.name for endpoint in ENDPOINTS)]
    note = (
        "Points at T = 1, 95 % intervals over sets of seeds and problems; in brackets where one "
        f"more set would come out in 95 of 100. Bold: told after Holm's correction over all "
        f"{len(rows)}. pass@16 and at the end: after 128 steps; else at equal tokens; easy: on "
        "problems that the first policy solves in half or more."
    )
    return Cells(header, body, note)


def told(row: Row) -> str:
    text = points(row, "difference")
    further = " to ".join(f"{100 * row[f'further_{end}']:+.1f}" for end in ENDS)
    return f"{text if row['verdict'] == NEITHER else f'**{text}**'} ({further})"


def main() -> None:
    ends = [(arm, endpoint, differences(arm, endpoint)) for endpoint in ENDPOINTS for arm in ARMS]
    averages = judge_rows([average_row(*each) for each in ends], {})
    sets = [row for each in ends for row in set_rows(*each)]
    results = FOLDER / "results"
    results.mkdir(exist_ok=True)
    for name, rows in (("averages", averages), ("sets", sets)):
        pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False, float_format="%.6g")
    words = ("arm", "measure", "verdict")
    write_tables(FOLDER / "README.md", {"averages": as_markdown(average_cells(averages), words)})
    write_tables(FINDINGS, {"averages": as_markdown(summary_cells(averages), ("arm, less GRPO",))})
    paper = studies(FOLDER.parent / FIRST).figures["forest"]["paper"]
    save_figure(
        draw_sets(sets, averages, SETS, paper, DRAWN), FOLDER / "figures" / "sets.png", dpi=150
    )


if __name__ == "__main__":
    main()

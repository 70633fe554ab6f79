"""What an arm has beside GRPO on average over sets of seeds, with the set as the unit.

    .venv/bin/python experiments/carries_across_sets/compare.py    # tables, results/, the figure

A set is the seeds that one study ran first. Its difference is the mean over its seeds, problem by
problem; over sets and problems these are judged as seeds and problems are elsewhere.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from forest import draw_sets
from matplotlib.figure import Figure
from numpy.typing import NDArray

from e3rl.analysis.figures.saved import save_figure
from e3rl.analysis.measures.arms import AND, Row, arm_label
from e3rl.analysis.measures.comparison import difference_columns, interval_columns
from e3rl.analysis.measures.costs import common_cost, known_cost
from e3rl.analysis.measures.families import DAGGER, LEVEL, NEITHER, hangs_on_problems, judge_rows
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.measures.subsets import start_counts
from e3rl.analysis.page.study import read_study, write_tables
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns, interval_text
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
    *("carries_budget_constants", "carries_four_steps_fresh", "carries_fresh_parts"),
)
FIRST = SETS[0]  # the set that the others were asked after
ONE_START = (  # of one set of training problems and one first policy, each a single draw
    *("carries_core", "carries_tuned", "carries_budget", "carries_factorial"),
    "carries_confirmation",
)
ALIKE, UNLIKE = "of one set of problems and one policy", "of others"
FOUR_STEPS, OTHER_MAKE = "carries_four_steps", "carries_four_steps_more"  # the same seeds
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


def average_row(arm: str, endpoint: Endpoint, tables: Mapping[str, pd.DataFrame]) -> Row:
    """An arm less the control over sets, with what `judge_rows` asks for."""
    sets = on_one_set_of_problems(tables)
    estimate = mean_over_sets(list(sets.values()))
    by_set = np.array([table.mean() for table in sets.values()])
    own = [table.mean(axis=1).var(ddof=1) / len(table) for table in sets.values()]
    comparison = f"{arm} less {CONTROL}, {endpoint.name}"
    return {
        **{"arm": arm, "measure": endpoint.name, "problems": sets[FIRST].shape[1]},
        "seeds": len(sets),  # the units that are judged: sets
        "seeds_of_sets": sum(map(len, sets.values())),
        **difference_columns(comparison, estimate, LEVEL, len(sets)),
        "sd_of_sets": float(by_set.std(ddof=1)),
        "sd_by_seeds": math.sqrt(np.mean(own)),
        **interval_columns("further", interval_of_another_set(list(sets.values()))),
        "tokens": None if endpoint.at_tokens else more_tokens(arm, list(sets)),
    }


def more_tokens(arm: str, names: Sequence[str]) -> float:
    """By how much of the control's an arm's tokens are more after the last step, over sets."""
    pairs = [pair for name in names if (pair := pair_of(name, arm))]
    spent = [[np.mean([known_cost(run, AXIS) for run in runs]) for runs in pair] for pair in pairs]
    return float(np.mean([mine / base for mine, base in spent]) - 1)


def variant_rows(arm: str, endpoint: Endpoint, tables: Mapping[str, pd.DataFrame]) -> list[Row]:
    """An arm over some of the sets, and over all with one of them read elsewhere."""
    variants = {
        ALIKE: {name: tables[name] for name in ONE_START if name in tables},
        UNLIKE: {name: table for name, table in tables.items() if name not in ONE_START},
        f"without {FIRST}": {name: table for name, table in tables.items() if name != FIRST},
    }
    if arm == "budget":
        again = differences_in(OTHER_MAKE, arm, endpoint)
        assert again is not None
        without = {name: table for name, table in tables.items() if name != FOUR_STEPS}
        variants[f"{OTHER_MAKE} for {FOUR_STEPS}"] = without | {OTHER_MAKE: again}
    return [
        {
            **{"arm": arm, "measure": endpoint.name, "of": words, "sets": len(chosen)},
            **{"seeds": sum(map(len, chosen.values())), "names": AND.join(chosen)},
            **interval_columns("difference", over(chosen)),
        }
        for words, chosen in variants.items()
        if chosen
    ]


def over(tables: Mapping[str, pd.DataFrame]) -> Interval:
    """Over sets and problems; of one set over its seeds."""
    found = list(on_one_set_of_problems(tables).values())
    if len(found) == 1:
        return mean_over_seeds_and_problems(found[0]).interval()
    return mean_over_sets(found).interval()


def variant_cells(rows: Sequence[Row]) -> Cells:
    cells = [
        {
            **{"arm": arm_label(row["arm"]), "measure": row["measure"], "sets": row["of"]},
            **{"n": str(row["sets"]), "seeds": str(row["seeds"])},
            "Δ points": interval_text(row, "difference", "+.1f", 100),
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        f"95 % intervals as above, uncorrected; of one set over its seeds. {ALIKE.capitalize()}: "
        f"{', '.join(ONE_START)}.",
    )


def set_rows(arm: str, endpoint: Endpoint, tables: Mapping[str, pd.DataFrame]) -> list[Row]:
    """Each set by itself: over its seeds and problems."""
    return [
        {
            **{"arm": arm, "measure": endpoint.name, "set": name, "seeds": len(table)},
            **interval_columns(
                "difference", mean_over_seeds_and_problems(table.to_numpy()).interval()
            ),
        }
        for name, table in tables.items()
    ]


def average_cells(rows: Sequence[Row]) -> Cells:
    """A row for each arm and endpoint."""
    cells = [
        {
            **{"arm": arm_label(row["arm"]), "measure": row["measure"]},
            **{"sets": str(row["seeds"]), "seeds": str(row["seeds_of_sets"])},
            **judged_texts(row),
            "verdict": verdict_of(row),
            "a further set": " to ".join(f"{100 * row[f'further_{e}']:+.1f}" for e in ENDS),
            "sd of sets": f"{100 * row['sd_of_sets']:.1f}",
            "by seeds alone": f"{100 * row['sd_by_seeds']:.1f}",
            "tokens %": "" if row["tokens"] is None else f"{100 * row['tokens']:+.1f}",
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "Each arm less GRPO at T = 1; 95 % intervals over sets and problems, paired by seed and "
        f"problem. p after Holm's correction (exploratory: {len(rows)} comparisons); †: open with "
        "the sets' degrees of freedom alone, those of the problems not counted. Detectable: as in "
        "other studies, of as many sets. Tokens: of whole runs, more than the control's. A further "
        "set: where one more like these would come out in 95 of 100. sd: of the sets' differences, "
        "and what the luck of their seeds alone makes of it, points, which counts where it is "
        "more. pass@16 and at the end: after 128 steps; else at equal tokens; easy: on the "
        f"{len(easy_problems())} problems that the first policy solves in half or more.",
    )


def verdict_of(row: Row) -> str:
    return f"{row['verdict']}{DAGGER * hangs_on_problems(row)}"


def summary_cells(rows: Sequence[Row]) -> Cells:
    """A row for each arm, for the page of all findings: what is told is bold."""
    body = []
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm]
        sets = sorted(row["seeds"] for row in mine)
        ends = " to ".join(str(n) for n in dict.fromkeys((sets[0], sets[-1])))
        tokens = f"{100 * mine[0]['tokens']:+.1f}"
        body.append([arm_label(arm), ends, *map(told, mine), tokens])
    header = ["arm, less GRPO", "sets", *(endpoint.name for endpoint in ENDPOINTS), "tokens %"]
    note = (
        "Points at T = 1, 95 % intervals over sets of seeds and problems; in round brackets where "
        "one more set would come out in 95 of 100. Bold: told after Holm's correction over all "
        f"{len(rows)}; †: open with the sets' degrees of freedom alone. pass@16 and at the end: "
        "after 128 steps; else at equal tokens; easy: on problems that the first policy solves in "
        "half or more; tokens: of whole runs."
    )
    return Cells(header, body, note)


def told(row: Row) -> str:
    text = interval_text(row, "difference", "+.1f", 100)
    further = " to ".join(f"{100 * row[f'further_{end}']:+.1f}" for end in ENDS)
    mark = DAGGER * hangs_on_problems(row)
    return f"{text if row['verdict'] == NEITHER else f'**{text}**{mark}'} ({further})"


def measure_all() -> tuple[list[Row], list[Row], list[Row]]:
    """Averages, the sets that they are of, and averages over some of these."""
    ends = [(arm, endpoint, differences(arm, endpoint)) for endpoint in ENDPOINTS for arm in ARMS]
    averages = judge_rows([average_row(*each) for each in ends], {})
    sets = [row for each in ends for row in set_rows(*each)]
    variants = [row for each in ends if each[1] in ENDPOINTS[:3] for row in variant_rows(*each)]
    return averages, sets, variants


def page_tables(averages: Sequence[Row], variants: Sequence[Row]) -> dict[str, str]:
    """The tables of README.md."""
    return {
        "averages": as_markdown(average_cells(averages), ("arm", "measure", "verdict")),
        "variants": as_markdown(variant_cells(variants), ("arm", "measure", "sets")),
    }


def summary_table(averages: Sequence[Row]) -> str:
    """The table of `FINDINGS`."""
    return as_markdown(summary_cells(averages), ("arm, less GRPO",))


def draw(averages: Sequence[Row], sets: Sequence[Row]) -> Figure:
    paper = studies(FOLDER.parent / FIRST).figures["forest"]["paper"]
    return draw_sets(sets, averages, SETS, paper, DRAWN)


def main() -> None:
    averages, sets, variants = measure_all()
    results = FOLDER / "results"
    results.mkdir(exist_ok=True)
    for name, rows in (("averages", averages), ("sets", sets), ("variants", variants)):
        pd.DataFrame(rows).to_csv(results / f"{name}.csv", index=False, float_format="%.6g")
    write_tables(FOLDER / "README.md", page_tables(averages, variants))
    write_tables(FINDINGS, {"averages": summary_table(averages)})
    save_figure(draw(averages, sets), FOLDER / "figures" / "sets.png", dpi=150)


if __name__ == "__main__":
    main()

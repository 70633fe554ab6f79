"""Do the budget and E3 do more, or less, with four optimiser steps a batch than with one?

    .venv/bin/python experiments/carries_four_steps/beside_one_step.py    # its table in README.md

Differences to GRPO with four steps (this study's runs) less those with one
(`carries_other_problems`). Seeds are of one of the two alone, the validation problems of both.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.comparison import difference_columns
from e3rl.analysis.measures.families import LEVEL, judge_rows
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns
from e3rl.analysis.tables.comparison_table import judged_texts
from e3rl.ledger.archive import open_runs
from e3rl.statistics.means import difference_over_seeds_and_problems

FOLDER = Path(__file__).parent
FOUR, ONE = "carries_four_steps", "carries_other_problems"
ARMS, CONTROL = ("budget", "e3"), "grpo"
LABELS = {"": "all", "easy": "mostly solved untrained", "unsolved": "never solved untrained"}
READ = (("", 1), ("", 16), ("easy", 1), ("unsolved", 16))  # of which problems, k
Table = NDArray[np.float64]


def table_of(runs: Sequence[Run], arm: str, k: int) -> pd.DataFrame:
    """pass@k (S, P) of an arm at T = 1 after its last step, problems by name."""
    mine = sorted((run for run in runs if run.name == arm), key=lambda run: run.seed)
    found = scores_at(mine, "t1", k, "tokens", math.inf)
    assert found is not None
    return found.table.sort_index(axis=1)


def untrained_shares(runs: Sequence[Run]) -> pd.Series:
    """Of rollouts right (P,) before training, all seeds together, a seed's arms having drawn the
    same ones; by the problems' names."""
    first = pd.concat(run.counts["t1", 0] for run in runs if run.name == CONTROL)
    sums = first.groupby("problem_id")[["n", "correct"]].sum().sort_index()
    return sums["correct"] / sums["n"]


def compare(four: Sequence[Run], one: Sequence[Run]) -> list[Row]:
    """All rows, exploratory."""
    shares = untrained_shares([*four, *one])
    subsets = {"": shares >= 0, "easy": shares >= 0.5, "unsolved": shares == 0}
    rows = []
    for arm in ARMS:
        for subset, k in READ:
            gains = [table_of(runs, arm, k) - table_of(runs, CONTROL, k) for runs in (four, one)]
            names = shares.index[subsets[subset]]
            mine, other = (each[names].to_numpy(dtype=np.float64) for each in gains)
            found = difference_over_seeds_and_problems(mine, other)
            words = f"{arm} - {CONTROL}, four steps - one, pass@{k}, {LABELS[subset]}"
            row = {"arm": arm, "measure": f"pass@{k}", "of": LABELS[subset], "level": LEVEL}
            row |= {"seeds": len(mine), "against_seeds": len(other), "problems": len(names)}
            row |= {"value": mine.mean(), "against_value": other.mean()}
            rows.append({**row, **difference_columns(words, found, LEVEL, len(mine))})
    return judge_rows(rows)


def comparison_cells(rows: Sequence[Row]) -> Cells:
    cells = [
        {
            "arm": arm_label(row["arm"]),
            "measure": row["measure"],
            "problems": f"{row['of']}, {row['problems']}",
            "Δ with four": f"{100 * row['value']:+.1f}",
            "Δ with one": f"{100 * row['against_value']:+.1f}",
            **judged_texts(row, "four less one, points"),
        }
        for row in rows
    ]
    return drop_empty_columns(
        cells,
        "Δ: less GRPO with as many optimiser steps, at T = 1 after 128 steps; 95 % intervals over "
        "seeds, which are not paired, and problems, which are. p after Holm's correction "
        f"(exploratory: {len(rows)} comparisons). Subsets by the untrained rollouts of both "
        "studies, 80 of each problem. Detectable: as in other studies. "
        f"{rows[0]['seeds']} and {rows[0]['against_seeds']} seeds.",
    )


def main() -> None:
    four, one = (load_runs(open_runs(FOLDER.parent / name / "runs")) for name in (FOUR, ONE))
    rows, readme = compare(four, one), FOLDER / "README.md"
    results = FOLDER / "results" / "beside_one_step.csv"
    pd.DataFrame(rows).to_csv(results, index=False, float_format="%.6g")
    text = as_markdown(comparison_cells(rows), ("arm", "measure", "problems", "verdict"))
    write_tables(readme, {"beside_one_step": text})


if __name__ == "__main__":
    main()

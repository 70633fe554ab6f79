"""The budget's main effect in pass@16 where both runs of a pair had generated as many tokens.

    python experiments/carries_four_steps_fresh/equal_tokens.py sample RUNS    # goes on
    python experiments/carries_four_steps_fresh/equal_tokens.py report         # two tables

In each seed `budget_tuned` is read beside `grpo`, and `both_tuned` beside `cool_tuned`, as
`../carries_other_problems/equal_tokens.py` reads a pair, and the mean of both differences is
judged. `sample` draws what that needs from the costlier runs of the sweep RUNS.
"""

import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import AND, Row, arm_label
from e3rl.analysis.measures.comparison import compare_tables
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns
from e3rl.analysis.tables.comparison_table import judged_texts

FOLDER = Path(__file__).parent
SHARED = runpy.run_path(str(FOLDER.parent / "carries_other_problems" / "equal_tokens.py"))
PAIRS = (("budget_tuned", "grpo"), ("both_tuned", "cool_tuned"))  # with the budget, and without
KS = SHARED["KS"]
Readings = Mapping[int, Any]  # of one pair, by seed
Table = NDArray[np.float64]


def main() -> None:
    options = SHARED["read_options"](__doc__, FOLDER)
    if options.action == "sample":
        runs = costlier_runs(load_runs(options.runs))
        SHARED["draw"](runs, options.out)
        SHARED["write_samples"](options.study, SHARED["gather"](runs, options.out))
    else:
        samples = SHARED["read_samples"](options.study)
        write_report(options.study, read_both(load_runs(options.study / "runs"), samples))


def costlier_runs(runs: Sequence[Run]) -> list[Run]:
    """Of every seed and pair."""
    return [run for p in PAIRS for run in SHARED["costlier_runs"](SHARED["pairs_of"](runs, *p))]


def read_both(runs: Sequence[Run], samples: Sequence[Any]) -> list[Readings]:
    """Both pairs, of the seeds in which both can be read at equal tokens."""
    found = [
        {each.seed: each for each in SHARED["read_pairs"](runs, samples, *pair)} for pair in PAIRS
    ]
    both = sorted(set.intersection(*(set(readings) for readings in found)))
    return [{seed: readings[seed] for seed in both} for readings in found]


def table_of(readings: Readings, arm: str, k: int) -> Table:
    """(S, P) of one arm."""
    return np.array([each.values[arm][k] for each in readings.values()])


def compare(both: Sequence[Readings]) -> list[Row]:
    """The declared main effect, a family of one; its pass@1 and both parts are exploratory."""
    chosen = [(PAIRS, 16), (PAIRS, 1), *(([pair], 16) for pair in PAIRS)]
    rows = [compare_sides(both, pairs, k) for pairs, k in chosen]
    return judge_rows(rows, {"equal_tokens": rows[:1]})


def compare_sides(both: Sequence[Readings], pairs: Sequence[tuple[str, str]], k: int) -> Row:
    """The mean of the first arms of some pairs less that of the second ones."""
    of_pair = dict(zip(PAIRS, both, strict=True))
    mine, other = (
        np.mean([table_of(of_pair[pair], pair[side], k) for pair in pairs], axis=0)
        for side in (0, 1)
    )
    arms, against = (AND.join(names) for names in zip(*pairs, strict=True))
    about = {"arm": arms, "against": f"{against} t1", "evaluation": "t1", "measure": f"pass@{k}"}
    return {**about, **compare_tables(mine, other, f"{arms} - {against}, pass@{k}")}


def comparison_cells(rows: Sequence[Row]) -> Cells:
    """A row for each comparison."""
    cells = [
        {
            "arm": arm_label(row["arm"]),
            "measure": row["measure"],
            "with the budget %": f"{100 * row['value']:.1f}",
            "without %": f"{100 * row['against_value']:.1f}",
            **judged_texts(row),
        }
        for row in rows
    ]
    first = rows[0]
    return drop_empty_columns(
        cells,
        "At T = 1, each pair of a seed at the tokens of its cheaper run; 95 % intervals over seeds "
        "and problems, paired by both. The first row is a declared family of one, the others are "
        f"exploratory. Detectable: as in other studies. {first['seeds']} seeds, "
        f"{first['problems']} problems.",
    )


def seed_cells(both: Sequence[Readings]) -> Cells:
    """A row for each seed and pair: where it is read, and what it has there."""
    cells = []
    for seed in both[0]:
        for (arm, control), readings in zip(PAIRS, both, strict=True):
            each = readings[seed]
            cells.append(
                {
                    **{"seed": str(seed), "pair": f"{arm}, {control}"},
                    "read at tokens": f"{each.at:,.0f}",
                    "tokens, budget / without, %": (
                        f"{100 * each.tokens[arm] / each.tokens[control]:.1f}"
                    ),
                    "pass@16 budget %": f"{100 * each.values[arm][16].mean():.1f}",
                    "pass@16 without %": f"{100 * each.values[control][16].mean():.1f}",
                }
            )
    return drop_empty_columns(cells, "Tokens generated in training, of whole runs but where read.")


def write_report(study: Path, both: Sequence[Readings]) -> None:
    """The tables of README.md, and the file of results."""
    rows = compare(both)
    (study / "results").mkdir(exist_ok=True)
    table = pd.DataFrame(rows[:1])
    table.to_csv(study / "results" / "equal_tokens.csv", index=False, float_format="%.6g")
    tables = {"equal_tokens": comparison_cells(rows), "seeds": seed_cells(both)}
    words = ("arm", "measure", "verdict", "pair")
    shown = {name: as_markdown(cells, words) for name, cells in tables.items()}
    write_tables(study / "README.md", shown)


if __name__ == "__main__":
    main()

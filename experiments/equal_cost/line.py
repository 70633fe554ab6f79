"""Is a run's pass@1 on the line between two validations where equal tokens read it?

    .venv/bin/python experiments/equal_cost/line.py    # the table of README.md

Two studies sampled a run of each seed after 120 of 128 steps, for another comparison. There the
line between its validations of steps 64 and 128, by tokens, is set beside what was sampled.
"""

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, load_runs
from e3rl.analysis.tables.cells import Cells, as_markdown, drop_empty_columns, interval_text
from e3rl.statistics.shares import difference_of_shares

FOLDER = Path(__file__).parent
PAGES = ("carries_four_steps", "carries_other_problems")
SAMPLED = runpy.run_path(str(FOLDER.parent / "carries_other_problems" / "equal_tokens.py"))
STEPS = (64, SAMPLED["EARLY"], SAMPLED["STEPS"])  # the line's two ends, and between them sampled
Table = NDArray[np.float64]  # (S, P)


@dataclass(frozen=True)
class Reading:
    """pass@1 of the sampled runs of a page at the sampled step."""

    page: str
    share: float  # of the tokens between both validations, mean of seeds
    line: Table
    sampled: Table


def read_page(page: str) -> Reading:
    """The line and what was sampled, of the runs that were sampled."""
    folder = FOLDER.parent / page
    runs = {(run.name, run.seed): run for run in load_runs(folder / "runs")}
    found = [_read(runs[each.arm, each.seed], each) for each in SAMPLED["read_samples"](folder)]
    shares, lines, samples = zip(*found, strict=True)
    return Reading(page, float(np.mean(shares)), np.array(lines), np.array(samples))


def _read(run: Run, sample: Any) -> tuple[float, Table, Table]:
    early, at, late = (SAMPLED["tokens_after"](run, step) for step in STEPS)
    share = (at - early) / (late - early)
    order = list(sample.right)
    ends = [_rates(run.counts["t1", step]).loc[order].to_numpy() for step in STEPS[::2]]
    right = np.array([sample.right[problem] for problem in order])
    return share, SAMPLED["between"](*ends, share), right / SAMPLED["ROLLOUTS"]


def _rates(counts: pd.DataFrame) -> "pd.Series[float]":
    return (counts["correct"] / counts["n"]).set_axis(counts["problem_id"].astype(str))


def table_cells(readings: list[Reading]) -> Cells:
    """A row for each page."""
    cells = []
    for each in readings:
        gap = difference_of_shares(each.line, each.sampled, paired_seeds=True).interval()
        cells.append(
            {
                "page": each.page,
                "seeds": str(len(each.line)),
                "of the line %": f"{100 * each.share:.0f}",
                "on the line %": f"{100 * each.line.mean():.1f}",
                "sampled %": f"{100 * each.sampled.mean():.1f}",
                "line less sampled, points": interval_text(
                    interval_columns("x", gap), "x", "+.1f", 100
                ),
            }
        )
    note = (
        "pass@1 at T = 1 after 120 steps of the costlier run of each seed: on the line between its "
        "validations of steps 64 and 128 by tokens, and sampled anew, 16 samples a problem. 95 % "
        "intervals over seeds and problems. Not declared."
    )
    return drop_empty_columns(cells, note)


def main() -> None:
    cells = table_cells([read_page(page) for page in PAGES])
    write_tables(FOLDER / "README.md", {"line": as_markdown(cells, ("page",))})


if __name__ == "__main__":
    main()

"""Compare arms, finished or running, on one page.

    e3rl report RUNS... [--control ARM] [--out FILE]

Reads run folders, offline W&B runs, or a W&B project (`wandb:entity/project`), prints the table of
arms against a control at equal cost, and writes a self-contained HTML page with curves, table and
configuration differences; with `--table`, all numbers as one tidy CSV or Parquet file as well.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.costs import AXES, AXIS_UNITS, total_cost
from e3rl.analysis.page.page import render_report
from e3rl.analysis.sources.runs import Run, group_by_arm
from e3rl.analysis.sources.source import read_runs
from e3rl.analysis.tables.comparison_table import comparison_text
from e3rl.analysis.tables.tidy import tidy_table

DEFAULT_CONTROL = "grpo"
SHORT = 0.8  # a run that spent less than this share of the longest is mentioned


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, compare, write, print."""
    options = build_parser().parse_args(arguments)
    try:
        print(write_report(options))
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="e3rl report", description="Compare arms and write one HTML page."
    )
    found.add_argument("runs", nargs="+", help="run folders, or folders above them; wandb:PROJECT")
    found.add_argument("--out", type=Path, default=Path("report.html"), help="the page")
    found.add_argument("--table", type=Path, help="tidy table of all runs, .csv or .parquet")
    found.add_argument("--control", help="arm that the others are compared with (grpo, if there)")
    found.add_argument("--axis", choices=AXES, help="of the equal cost (tokens, if recorded)")
    found.add_argument("--k", type=int, default=16, help="of the larger pass@k")
    found.add_argument("--title", default="Comparison of arms")
    return found


def write_report(options: argparse.Namespace) -> str:
    """Write the page; returns the table, what to know about it, and where the page is.

    Raises ValueError where no run has trained a step.
    """
    found = read_runs(options.runs)
    runs = [run for run in found if not run.train.empty]
    if not runs:
        raise ValueError(f"none of {len(found)} runs has finished a training step yet")
    arms, axis = group_by_arm(runs), options.axis or default_axis(runs)
    control = options.control or (DEFAULT_CONTROL if DEFAULT_CONTROL in arms else None)
    rows: list[Row] = []
    if any(not run.problems.empty for run in runs):
        rows = compare_arms(arms, control, (1, options.k), axis)
    notes = remarks(found, axis)
    page = render_report(arms, rows, options.title, notes)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")
    if options.table is not None:
        write_table(runs, options.table)
    table = comparison_text(rows) if rows else "no run was validated"
    return "\n\n".join([table, *notes, f"page: {options.out}"])


def remarks(runs: Sequence[Run], axis: str) -> list[str]:
    """Runs that were left out, and one so short that it cuts the comparison of all others."""
    notes = [f"left out, no training step yet: {run.path}" for run in runs if run.train.empty]
    spent = {run.path: total_cost(run.train, axis) for run in runs if not run.train.empty}
    shortest = min(spent, key=lambda path: spent[path])
    if spent[shortest] < SHORT * max(spent.values()):
        notes.append(
            f"all arms are compared at {spent[shortest]:,.0f} {AXIS_UNITS[axis]}, where "
            f"{shortest} ends; leave it out to compare them later"
        )
    return notes


def write_table(runs: Sequence[Run], path: Path) -> None:
    """The tidy table of all runs; ValueError for a file that is neither CSV nor Parquet."""
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--table {path}: give a name that ends in .csv or .parquet")
    table = tidy_table(runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        table.to_csv(path, index=False)
    else:
        table.to_parquet(path, index=False)


def default_axis(runs: Sequence[Run]) -> str:
    """Tokens, or steps where some run did not record what it spent."""
    spent = [total_cost(run.train, "tokens") for run in runs]
    return "tokens" if np.isfinite(spent).all() else "steps"


if __name__ == "__main__":
    main()

"""What `e3rl report` makes: a page, a table to print, and what to know about both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.costs import known_cost, total_cost
from e3rl.analysis.page.page import render_report
from e3rl.analysis.sources.runs import Arms, Run, group_by_arm
from e3rl.analysis.sources.source import read_runs
from e3rl.analysis.tables.comparison_table import comparison_text
from e3rl.analysis.tables.tidy import tidy_table
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.run_warnings import find_warnings
from e3rl.process.output import check_file

DEFAULT_CONTROL = "grpo"
SHORT = 0.8  # a run that spent less than this share of the longest is mentioned


@dataclass(frozen=True)
class Comparison:
    """What is compared, and where that is written.

    Args:
        runs: run folders or folders above them, offline W&B runs, wandb:PROJECT.
        out: the page.
        table: tidy table of all runs, .csv or .parquet.
        control: arm that the others are compared with; None: grpo, where it is there.
        axis: of the equal cost; None: tokens, where they are recorded.
        k: of the larger pass@k.
        title: of the page.
    """

    runs: Sequence[str]
    out: Path
    table: Path | None = None
    control: str | None = None
    axis: str | None = None
    k: int = 16
    title: str = "Comparison of arms"


def write_report(options: Comparison) -> str:
    """Write the page; returns the table, what to know about it, and where the page is.

    Raises ValueError where no run has trained a step, and before any is read where the page or the
    table cannot be written.
    """
    check_file("--out ", options.out)
    if options.table is not None:
        check_table(options.table)
    found = read_runs(options.runs)
    runs = [run for run in found if not run.train.empty]
    if not runs:
        raise ValueError(f"none of {len(found)} runs has finished a training step yet")
    arms, axis = group_by_arm(runs), options.axis or default_axis(runs)
    control = options.control or (DEFAULT_CONTROL if DEFAULT_CONTROL in arms else None)
    rows: list[Row] = []
    if any(not run.problems.empty for run in runs):
        known = group_by_arm(without_untrained(runs, axis))
        base = None if control in arms.keys() - known.keys() else control
        rows = compare_arms(known, base, (1, options.k), axis)
    notes = remarks(found, axis)
    page = render_report(arms, rows, options.title, notes, control)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")
    if options.table is not None:
        write_table(runs, options.table)
    table = comparison_text(rows) if rows else "no run was validated"
    warned = [f"WARNING: {each}" for each in find_warnings(Compared(arms, control, rows))]
    alone = [] if control or len(arms) < 2 else [explain_no_control(arms)]
    return "\n\n".join([table, *alone, *notes, *warned, f"page: {options.out}"])


def explain_no_control(arms: Arms) -> str:
    """Why a table of several arms compares none with another."""
    return (
        f"no arm is called {DEFAULT_CONTROL}, so none is compared with another: give --control and "
        f"one of {', '.join(arms)}"
    )


def without_untrained(runs: Sequence[Run], axis: str) -> list[Run]:
    """The runs that were validated since their training began, or all where none was."""
    return [run for run in runs if known_cost(run, axis) != 0] or list(runs)


def remarks(runs: Sequence[Run], axis: str) -> list[str]:
    """Runs that were left out, and one so short that it cuts the comparison of all others."""
    notes = [f"left out, no training step yet: {run.path}" for run in runs if run.train.empty]
    begun = [run for run in runs if not run.train.empty]
    spent = {run.path: known_cost(run, axis) for run in without_untrained(begun, axis)}
    early = [run.path for run in begun if run.path not in spent]
    notes += [f"not compared, not validated since its training began: {path}" for path in early]
    shortest = min(spent, key=lambda path: spent[path])
    if spent[shortest] < SHORT * max(spent.values()):
        notes.append(
            f"all arms are compared at {spent[shortest]:,.0f} {AXIS_UNITS[axis]}, where "
            f"{shortest} was last validated; leave it out to compare them later"
        )
    return notes


def check_table(path: Path) -> None:
    """Raise ValueError for a file that is neither CSV nor Parquet, or that cannot be written."""
    if path.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--table {path}: give a name that ends in .csv or .parquet")
    check_file("--table ", path)


def write_table(runs: Sequence[Run], path: Path) -> None:
    """The tidy table of all runs, as CSV or Parquet."""
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

"""What `e3rl report` makes: a page, a table to print, and what to know about both."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.page.lacking import lacking_rollouts, lacking_seeds
from e3rl.analysis.page.page import render_report
from e3rl.analysis.page.unfinished import (
    begun_runs,
    default_axis,
    remarks,
    without_untrained,
)
from e3rl.analysis.sources.runs import Arms, Run, group_by_arm
from e3rl.analysis.sources.source import read_runs
from e3rl.analysis.tables.comparison_table import comparison_text
from e3rl.analysis.tables.tidy import tidy_table
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.run_warnings import find_warnings
from e3rl.process.output import check_file

DEFAULT_CONTROL = "grpo"


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
    runs = begun_runs(found)
    arms, axis = group_by_arm(runs), options.axis or default_axis(runs)
    control = choose_control(options.control, arms)
    known, rows = group_by_arm(without_untrained(runs, axis)), list[Row]()
    base = control if control in known else None
    if any(not run.problems.empty for run in runs):
        rows = compare_arms(known, base, (1, options.k), axis)
    notes = [
        *remarks(found, axis),
        *lacking_rollouts(known, rows, options.k),
        *lacking_seeds(known, rows),
    ]
    page = render_report(known, rows, options.title, notes, base)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page, encoding="utf-8")
    if options.table is not None:
        write_table(runs, options.table)
    table = comparison_text(rows) if rows else "no run was validated"
    warned = [f"WARNING: {each}" for each in find_warnings(Compared(known, base, rows))]
    alone = [] if control or len(arms) < 2 else [explain_no_control(arms)]
    return "\n\n".join([table, *alone, *notes, *warned, f"page: {options.out}"])


def choose_control(asked: str | None, arms: Arms) -> str | None:
    """The arm that is asked for, or the default one where it is there. Raises ValueError for one
    that is not."""
    if asked is not None and asked not in arms:
        raise ValueError(f"control={asked!r} is no arm; there are {', '.join(arms)}")
    return asked or (DEFAULT_CONTROL if DEFAULT_CONTROL in arms else None)


def explain_no_control(arms: Arms) -> str:
    """Why a table of several arms compares none with another."""
    return (
        f"no arm is called {DEFAULT_CONTROL}, so none is compared with another: give --control and "
        f"one of {', '.join(arms)}"
    )


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

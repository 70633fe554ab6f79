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

from e3rl.analysis.measures.axes import AXES


def main(arguments: Sequence[str] | None = None) -> None:
    """Read, compare, write, print."""
    options = build_parser().parse_args(arguments)
    from e3rl.analysis.page.report import Comparison, write_report

    try:
        print(write_report(Comparison(**vars(options))))
    except (OSError, ValueError) as error:
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


if __name__ == "__main__":
    main()

"""Make the tables and figures of studies.

    e3rl study experiments/NAME...

A study is a folder with `study.yaml` and `README.md`. The former says which recorded runs and arms
it is about and which tables and figures it wants:

    runs: ../runs            # relative to the study; [PATH, ...]: of several places
    arms: [grpo, ts]         # all that there are, if left out
    seeds: [1, 2]            # all, if left out
    control: grpo            # that the others are compared with
    figures:
      entropy: {}            # by name, with arguments of the function
    tables:
      at_equal_tokens: {kind: comparison, ks: [1, 16], axis: tokens}
      interaction: {kind: interaction, of: [[both, one, other, neither]]}

Every table is written to `results/NAME.csv` and, as Markdown, into the README between the lines
`<!-- table: NAME -->` and `<!-- end -->`; figures go to `figures/`. The words around them are the
author's. Printed are arms and seeds that are missing, arms with fewer seeds than others, runs
that were left out because they were not validated since their training began, and arms and seeds
of which a table has no pass@k.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Make every table and figure of the given studies; print what is missing."""
    parser = argparse.ArgumentParser(
        prog="e3rl study", description="Make the tables and figures of studies."
    )
    parser.add_argument("studies", nargs="+", type=Path, help="folders with a study.yaml")
    options = parser.parse_args(arguments)
    from e3rl.analysis.page.study import read_study, write_study

    try:
        for folder in options.studies:
            study = read_study(folder)
            lacking = write_study(study)
            print("\n".join([f"{folder}: written", *study.missing, *lacking]))
    except (FileNotFoundError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()

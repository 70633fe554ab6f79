"""Which findings of the core study these runs confirm: the table `holds`.

    .venv/bin/python experiments/carries_confirmation/holds.py

By the rule of the protocol: a finding is confirmed where it is told here, corrected within its
declared family, in the direction that the core study had; contradicted where it is told in the
other one; else neither.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.analysis.tables.comparison_table import p_text

FOLDER = Path(__file__).parent
CORE = FOLDER.parent / "carries_core"
ALPHA = 0.05


class Finding(NamedTuple):
    """A row of the core study, the declared family that asks for it here, and its words."""

    words: str
    arm: str
    core: str  # table
    family: str
    more: bool  # than the control


FINDINGS = (
    Finding("more pass@16", "budget", "many_tries", "many_tries", more=True),
    Finding("less pass@1 at equal tokens", "e3", "primary", "primary", more=False),
    Finding("less pass@16", "dapo", "many_tries", "many_tries", more=False),
    Finding("more pass@16 on unsolved problems", "budget", "unsolved", "unsolved", more=True),
    Finding("less pass@16 on unsolved problems", "dapo", "unsolved", "unsolved", more=False),
    Finding("less pass@1 on easy problems", "budget", "easy", "easy", more=False),
    Finding("less pass@1 on easy problems", "e3", "easy", "easy", more=False),
    Finding("more rollouts to 40 %", "e3", "rollouts_to", "rollouts_to", more=True),
)


def find_row(study: Path, table: str, arm: str) -> Row:
    """The one row of an arm; of accuracies to reach, that of 40 %."""
    rows = pd.read_csv(study / "results" / f"{table}.csv")
    rows = rows[rows["arm"] == arm]
    if "target" in rows:
        rows = rows[rows["target"] == 0.4]
    (row,) = rows.to_dict("records")
    return {str(key): value for key, value in row.items()}


def effect(row: Row) -> tuple[float, float, float]:
    """A difference with its interval in points, or a ratio with its own."""
    name, scale = ("ratio", 1.0) if "ratio" in row else ("difference", 100.0)
    mean, low, high = (scale * float(row[f"{name}{end}"]) for end in ("", "_low", "_high"))
    return mean, low, high


def judge(row: Row, more: bool) -> str:
    """confirmed, contradicted or neither."""
    if not row["p_adjusted"] < ALPHA:
        return "neither"
    mean, _, _ = effect(row)
    return "confirmed" if (mean > float("ratio" in row)) == more else "contradicted"


def finding_rows() -> Iterator[Row]:
    for finding in FINDINGS:
        core = find_row(CORE, finding.core, finding.arm)
        here = find_row(FOLDER, finding.family, finding.arm)
        if here["family"] != finding.family:
            raise ValueError(f"{finding.family} of {finding.arm} is of family {here['family']}")
        yield {
            "arm": finding.arm,
            "finding": finding.words,
            "core_family": core["family"],
            "family": finding.family,
            **{f"core{end}": x for end, x in zip(("", "_low", "_high"), effect(core), strict=True)},
            **{f"here{end}": x for end, x in zip(("", "_low", "_high"), effect(here), strict=True)},
            "ratio": "ratio" in here,
            "p_adjusted": here["p_adjusted"],
            "verdict": judge(here, finding.more),
        }


def finding_cells(rows: list[Row]) -> Cells:
    header = ["", "arm", "finding", "core study", "there", "here", "p", "verdict"]
    body = []
    for place, row in enumerate(rows, start=1):
        form = "{:.2f} [{:.2f}, {:.2f}]" if row["ratio"] else "{:+.1f} [{:+.1f}, {:+.1f}]"
        there, here = (
            form.format(*(row[f"{side}{end}"] for end in ("", "_low", "_high")))
            for side in ("core", "here")
        )
        said = p_text(row["p_adjusted"])
        declared = "exploratory" if row["core_family"] == "exploratory" else "declared"
        about = [str(place), row["arm"], row["finding"], declared]
        body.append([*about, there, here, said, row["verdict"]])
    note = (
        "Points, of the last row a ratio; 95 % intervals over seeds and problems, each by itself. "
        "p after Holm's correction within the declared family here, times two looks. *Confirmed*: "
        "p below .05, in the direction of the core study."
    )
    return Cells(header, body, note)


def main() -> None:
    readme, rows = FOLDER / "README.md", list(finding_rows())
    pd.DataFrame(rows).to_csv(FOLDER / "results" / "holds.csv", index=False, float_format="%.6g")
    cells = as_markdown(finding_cells(rows), ("arm", "finding", "core study", "verdict"))
    write_tables(readme, {"holds": cells})


if __name__ == "__main__":
    main()

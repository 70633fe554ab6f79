"""The tables of docs/results.md, from those of the studies.

    .venv/bin/python experiments/findings.py    # after a study that findings.yaml names has changed

Every number is a cell of a study's own table. What is told and marked follows the rules of the
ledger of claims.
"""

import re
import runpy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import as_markdown, drop_empty_columns, interval_text

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
LEDGER = runpy.run_path(str(HERE / "claims.py"))
CAVEATS = LEDGER["load_ledger"]()["caveats"]  # what was known, by study
CONTROL = "grpo"
EXPLORATORY = "°"
NOTE = (
    "Points. Bold: told; °: exploratory; †, ‡: with a reserve "
    "([how to read](#how-to-read-the-tables))."
)
ORDER = (
    *("pass@16, equal tokens", "pass@16", "pass@64", "pass@16, never solved"),
    *("pass@1", "pass@1, end", "pass@1, easy", "greedy"),
)  # of columns
LOOKS = {2: "second look", 3: "third look"}


def load_tables() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load((HERE / "findings.yaml").read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def table_of(row: Mapping[str, Any], title: str) -> tuple[str, Mapping[str, Any]]:
    """The study's table that a cell is of, and what else its row there has to have."""
    named = row["cells"][title]
    return (named, {}) if isinstance(named, str) else (named["table"], named["where"])


def find_cell(row: Mapping[str, Any], title: str) -> pd.Series:
    """The row of a study's table that a cell is of. Raises ValueError where not one is.

    Args:
        row: of a table of `findings.yaml`, with its `arm` and `against`.
        title: of the column: `pass@16, never solved`, or `greedy`.
    """
    name, others = table_of(row, title)
    found = pd.read_csv(HERE / row["study"] / "results" / f"{name}.csv")
    found = found[found["arm"] == row["arm"]]
    for column, value in others.items():
        found = found[found[column] == value]
    if "against" in found:
        found = found[found["against"].str.split().str[0] == row.get("against", CONTROL)]
    greedy = title.startswith("greedy")
    if found["measure"].nunique() > 1:
        found = found[found["measure"] == ("pass@1" if greedy else title.split(",")[0])]
    if "evaluation" in found and found["evaluation"].nunique() > 1:
        found = found[found["evaluation"] == ("greedy" if greedy else "t1")]
    if len(found) != 1:
        raise ValueError(f"{row['study']}/{name}: {len(found)} rows are of {title} in {row}")
    return found.iloc[0]


def judged_text(study: str, table: str, found: pd.Series) -> str:
    """`**+2.2 [+1.4, +3.1]**†` of a row of a study's table, with its marks."""
    keys = [key for key in ("arm", "against", "measure", "evaluation") if key in found.index]
    wanted = {key: found[key] for key in keys if pd.notna(found[key])}
    test = {"study": study, "table": table, "row": wanted, "expect": "above"}
    text = interval_text(found.to_dict(), "difference", "+.1f", 100)
    if LEDGER["decide"](test) != "open":
        marks = "†" * LEDGER["hangs_on_problems"](test) + "‡" * LEDGER["hangs_on_cost"](test)
        text = f"**{text}**{marks}"
    return text if LEDGER["is_declared"](found) else text + EXPLORATORY


def name_status(study: str, found: Sequence[pd.Series], caveats: Mapping[str, str]) -> str:
    """Whether comparisons were declared, what was known then, and how often was looked."""
    declared = [each for each in found if LEDGER["is_declared"](each)]
    if not declared:
        return "exploratory"
    looks = max(int(each["looks"]) if pd.notna(each.get("looks")) else 1 for each in declared)
    said = ["declared", caveats.get(study, ""), LOOKS.get(looks, "")]
    return ", ".join(filter(None, said))


def row_texts(row: Mapping[str, Any], words: Sequence[str]) -> dict[str, str]:
    """The texts of a row by the titles of its columns."""
    link = f"](../experiments/{row['study']}/README.md)"
    found = {title: find_cell(row, title) for title in row["cells"]}
    seeds = sorted({int(each["seeds"]) for each in found.values()})
    count = " to ".join(map(str, dict.fromkeys([seeds[0], seeds[-1]])))
    said = dict(zip(words, (re.sub(r"\]", link, text) for text in row["says"]), strict=True))
    said["status"] = name_status(row["study"], [*found.values()], CAVEATS)
    said["seeds"] = f"{count} {row.get('seeds', '')}".strip()
    texts = {t: judged_text(row["study"], table_of(row, t)[0], each) for t, each in found.items()}
    return said | {title: texts.get(title, "") for title in ORDER}


def render(table: Mapping[str, Any]) -> str:
    """A table as Markdown. Raises ValueError where a column has no place."""
    of_all = {key: table[key] for key in ("arm", "against") if key in table}
    rows = [of_all | row for row in table["rows"]]
    if unknown := {title for row in rows for title in row["cells"]} - {*ORDER}:
        raise ValueError(f"findings.yaml: columns {sorted(unknown)} are none of {list(ORDER)}")
    texts = [row_texts(row, table["words"]) for row in rows]
    return as_markdown(drop_empty_columns(texts, NOTE), (*table["words"], "status"))


def main() -> None:
    write_tables(PAGE, {name: render(table) for name, table in load_tables().items()})


if __name__ == "__main__":
    main()

"""What is said of declared verdicts at other costs is what its tables hold."""

import re

import pandas as pd

from pages import ROOT

STUDY = ROOT / "experiments" / "equal_cost"
TEXT = (STUDY / "README.md").read_text(encoding="utf-8")
COSTS = ("own", "common", "end")
NUMBERS = re.compile(r"(?<![\w.])[+-]?\d*\.\d+")


def comparisons() -> pd.DataFrame:
    return pd.read_csv(STUDY / "results" / "comparisons.csv")


def test_it_has_every_comparison_of_pass_at_1_that_was_declared_at_equal_tokens() -> None:
    found = comparisons()
    for page, rows in found.groupby("page"):
        for family, mine in rows.groupby("family"):
            table = ROOT / "experiments" / str(page) / "results" / f"{family}.csv"
            own = pd.read_csv(table)
            assert sorted(own["difference"]) == sorted(mine["own_difference"])
            assert sorted(own["verdict"]) == sorted(mine["own_verdict"])
    assert f"All {len(found)} declared comparisons" in TEXT


def test_the_table_of_changes_lists_all_that_change() -> None:
    found = comparisons()
    changes = found[
        [len({row[f"{cost}_verdict"] for cost in COSTS}) > 1 for _, row in found.iterrows()]
    ]
    table = TEXT.split("<!-- table: changed -->")[1].split("<!-- end -->")[0]
    assert table.count("\n| carries_") == len(changes) == 5
    for row in changes.to_dict("records"):
        assert f"| {row['page']} | {row['family']} | {row['arm']} | {row['against']} |" in table


def test_the_verdict_says_what_the_tables_hold() -> None:
    found = comparisons()
    tables, verdict = TEXT.split("## What can be said")
    assert {x.lstrip("+") for x in NUMBERS.findall(verdict)} <= {
        x.lstrip("+") for x in NUMBERS.findall(tables)
    }
    assert (found["own_verdict"] == found["common_verdict"]).all()
    shift = (found["common_difference"] - found["own_difference"]).abs()
    assert 100 * shift.max() < 1.45
    assert 100 * shift[found["page"] != "carries_abort"].max() < 0.45
    alike = (found["own_verdict"] == found["common_verdict"]) & (
        found["own_verdict"] == found["end_verdict"]
    )
    lasting = found[alike & (found["own_verdict"] != "not distinguishable")]
    assert set(lasting["arm"]) == {"abort"}
    assert len(lasting) == 2

"""The tables of docs/results.md are those of the studies, and leave none of their verdicts out."""

import re
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from computed_values import with_interval
from pages import ROOT

EXPERIMENTS = ROOT / "experiments"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def findings() -> dict[str, Any]:
    return runpy.run_path(str(EXPERIMENTS / "findings.py"))


@pytest.fixture(scope="module")
def declared(findings: dict[str, Any]) -> pd.DataFrame:
    found = findings["LEDGER"]["load_declared"]()
    assert isinstance(found, pd.DataFrame)
    return found


def body_of(name: str) -> str:
    (found,) = re.findall(rf"(?s)<!-- table: {name} -->\n\n(.*?)\n\n<!-- end -->", PAGE)
    return str(found)


def test_the_tables_are_those_of_the_studies(findings: dict[str, Any]) -> None:
    tables = findings["load_tables"]()
    for name, table in tables.items():
        assert body_of(name) == findings["render"](table)
    shown = re.findall(r"<!-- table: (\w+) -->", PAGE)
    assert sorted(shown) == sorted(["averages", *tables])


def judged() -> pd.DataFrame:
    """Every row of every study on carries that has a verdict."""
    found = []
    for path in EXPERIMENTS.glob("*/results/*.csv"):
        rows = pd.read_csv(path)
        if {"arm", "verdict", "difference"} <= {*rows.columns}:
            found.append(rows.dropna(subset="difference").assign(study=path.parents[1].name))
    return pd.concat(found, ignore_index=True)


def test_what_is_bold_is_told_by_its_study_and_nothing_else_is() -> None:
    known = {
        (row["study"], with_interval(row), row["verdict"] in ("better", "worse"))
        for row in judged().to_dict("records")
    }
    checked = 0
    for line in PAGE.split("\n## More rollouts")[1].splitlines():
        if not line.startswith("| ") or " [" not in line:
            continue
        if study := re.search(r"experiments/(\w+)/", line):
            last = study[1]
        for bold, cell in re.findall(r"\| (\*{0,2})([+-]\d+\.\d \[[^]]+\])", line):
            told = {verdict for _, text, verdict in known if text == cell}
            assert bool(bold) in told, (last, line, cell)
            checked += 1
    assert checked > 250


@pytest.mark.parametrize("arm", ["budget", "budget_tuned", "e3", "ts", "ts_an", "dapo"])
def test_no_declared_comparison_with_grpo_over_all_problems_is_left_out(
    declared: pd.DataFrame, arm: str
) -> None:
    """Those of pass@1 and pass@16, at T = 1 and greedy."""
    asked = declared[
        (declared["arm"] == arm)
        & declared["against"].isin(["grpo", "grpo t1", "grpo greedy"])
        & declared["measure"].isin(["pass@1", "pass@16"])
        & declared["page"].str.startswith("carries_")
        & ~declared["family"].isin(["easy", "unsolved"])
    ]
    missing = [
        f"{row['page']}: {row['family']}"
        for row in asked.to_dict("records")
        if with_interval(row) not in PAGE
    ]
    assert missing == []
    assert len(asked) > 1


def test_families_that_ask_for_the_budgets_pass_at_16_are_counted(declared: pd.DataFrame) -> None:
    own = declared["arm"].isin(["budget", "budget_tuned"]) & declared["against"].isin(
        ["grpo", "grpo t1"]
    )
    main = declared["arm"] == "budget_tuned&both_tuned"
    main |= (declared["arm"] == "budget&e3") & (declared["page"] == "carries_fresh_parts")
    asked = declared[
        (own | main)
        & (declared["measure"] == "pass@16")
        & ~declared["family"].isin(["unsolved", "equal_tokens"])
        & declared["page"].str.startswith("carries_")
    ]
    families = asked.groupby(["page", "family"])["told"].any()
    number = {7: "seven", 8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}
    number |= {13: "thirteen"}
    said = f"Of {number[len(families)]} declared families that ask for pass@16 after as many steps"
    assert f"{said}, {number[int(families.sum())]} tell it" in " ".join(PAGE.split())


def study_of(tmp_path: Path, findings: dict[str, Any], rows: str) -> dict[str, Any]:
    (tmp_path / "one" / "results").mkdir(parents=True)
    (tmp_path / "one" / "results" / "t.csv").write_text(rows)
    findings["find_cell"].__globals__["HERE"] = tmp_path
    return {"study": "one", "arm": "a", "cells": {"pass@16": "t"}, "says": ["x"]}


@pytest.fixture
def fresh() -> dict[str, Any]:
    return runpy.run_path(str(EXPERIMENTS / "findings.py"))


HEAD = "arm,against,evaluation,measure,difference\n"


def test_a_cell_is_the_row_of_its_arm_control_and_measure(
    tmp_path: Path, fresh: dict[str, Any]
) -> None:
    rows = "a,grpo t1,t1,pass@16,1\na,grpo t1,t1,pass@1,2\na,hot t1,t1,pass@16,3\n"
    rows += "b,grpo t1,t1,pass@16,4\na,grpo greedy,greedy,pass@1,5\n"
    row = study_of(tmp_path, fresh, HEAD + rows)
    find = fresh["find_cell"]
    assert find(row, "pass@16")["difference"] == 1
    row["cells"] |= {"pass@1, easy": "t", "greedy": "t"}
    assert find(row, "pass@1, easy")["difference"] == 2
    assert find(row, "greedy")["difference"] == 5
    assert find(row | {"against": "hot"}, "pass@16")["difference"] == 3
    row["cells"]["pass@1"] = {"table": "t", "where": {"difference": 5}}
    assert find(row, "pass@1")["difference"] == 5


def test_a_cell_of_no_row_or_of_several_is_an_error(tmp_path: Path, fresh: dict[str, Any]) -> None:
    row = study_of(tmp_path, fresh, HEAD + 2 * "a,grpo t1,t1,pass@16,1\n")
    with pytest.raises(ValueError, match="one/t: 2 rows are of pass@16"):
        fresh["find_cell"](row, "pass@16")
    with pytest.raises(ValueError, match="0 rows"):
        fresh["find_cell"](row | {"arm": "c"}, "pass@16")
    with pytest.raises(ValueError, match=r"columns \['pass@8'\] are none of"):
        fresh["render"]({"words": ["w"], "rows": [row | {"cells": {"pass@8": "t"}}]})


@pytest.mark.parametrize(
    ("rows", "status"),
    [
        ([{"family": "exploratory"}], "exploratory"),
        ([{"family": "exploratory"}, {"family": "primary"}], "declared, the control known"),
        ([{"family": "primary", "looks": 3}], "declared, the control known, third look"),
        ([{"family": "primary", "looks": float("nan")}], "declared, the control known"),
    ],
)
def test_a_row_says_what_was_known_and_how_often_was_looked(
    findings: dict[str, Any], rows: list[dict[str, Any]], status: str
) -> None:
    found = [pd.Series(row) for row in rows]
    assert findings["name_status"]("one", found, {"one": "the control known"}) == status

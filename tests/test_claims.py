"""The ledger of claims says what the studies' tables say."""

import re
import runpy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from pages import ROOT
from raw_ledgers import adjusted


@pytest.fixture(scope="module")
def ledger() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "experiments" / "claims.py"))


@pytest.fixture(scope="module")
def aims() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "experiments" / "aims.py"))


def test_the_page_is_that_of_the_tables(ledger: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "claims.md").read_text(encoding="utf-8") == ledger["render"]()


@pytest.mark.parametrize(
    ("interval", "expect", "p", "verdict"),
    [
        ((0.1, 0.3), "above", None, "holds"),
        ((0.1, 0.3), "below", None, "contradicted"),
        ((-0.3, -0.1), "below", None, "holds"),
        ((-0.3, -0.1), "above", None, "contradicted"),
        ((-0.1, 0.3), "above", None, "open"),
        ((0.0, 0.3), "above", None, "open"),
        ((0.1, 0.3), "above", 0.06, "open"),
        ((0.1, 0.3), "above", 0.04, "holds"),
        ((0.1, 0.3), "above", float("nan"), "open"),
    ],
)
def test_a_verdict_follows_from_interval_and_correction(
    ledger: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    interval: tuple[float, float],
    expect: str,
    p: float | None,
    verdict: str,
) -> None:
    low, high = interval
    (tmp_path / "one" / "results").mkdir(parents=True)
    head = "arm,difference,difference_low,difference_high" + (",p_adjusted" if p else "")
    row = f"x,0.2,{low},{high}" + (f",{p}" if p else "")
    (tmp_path / "one" / "results" / "t.csv").write_text(f"{head}\n{row}\n")
    decide = ledger["decide"]
    monkeypatch.setitem(decide.__globals__, "HERE", tmp_path)
    test = {"study": "one", "table": "t", "row": {"arm": "x"}, "expect": expect}
    assert decide(test) == verdict
    with pytest.raises(ValueError, match="0 rows"):
        decide(test | {"row": {"arm": "y"}})
    with pytest.raises(ValueError, match="neither above nor below"):
        decide(test | {"expect": "up"})


@pytest.mark.parametrize(("factor", "hangs"), [(3, False), (4, True)])
def test_a_verdict_hangs_on_problems_where_seeds_alone_would_leave_it_open(
    ledger: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    factor: int,
    hangs: bool,
) -> None:
    """t = 4 of five seeds is p .016 with their four degrees; times 3 that is .048, times 4 .065."""
    row = {"arm": "x", "seeds": 5, "difference": 0.2, "difference_low": 0.1, "difference_high": 0.3}
    row |= {"difference_error": 0.05, "difference_df": 40.0, "p": 0.001, "p_adjusted": factor / 1e3}
    (tmp_path / "one" / "results").mkdir(parents=True)
    pd.DataFrame([row]).to_csv(tmp_path / "one" / "results" / "t.csv")
    found = ledger["hangs_on_problems"]
    monkeypatch.setitem(found.__globals__, "HERE", tmp_path)
    test = {"study": "one", "table": "t", "row": {"arm": "x"}, "expect": "above"}
    assert found(test) == hangs


@pytest.mark.parametrize(
    ("looks", "others", "hangs"),
    [
        (1, 0, False),  # p .016 of four degrees
        (3, 0, False),  # .048
        (4, 0, True),  # .065
        (1, 3, True),  # times four by Holm
    ],
)
def test_a_declared_verdict_is_corrected_for_its_family_and_its_looks_alone(
    ledger: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    looks: int,
    others: int,
    hangs: bool,
) -> None:
    ends = {"difference": 0.2, "difference_low": 0.1, "difference_high": 0.3}
    row = {"arm": "x", "seeds": 5, "difference_df": 40.0, "p": 0.001, "p_adjusted": 0.003} | ends
    row |= {"difference_error": 0.05, "family": "first", "looks": looks}
    more = [row | {"arm": f"y{i}"} for i in range(others)]
    beside = [row | {"arm": f"z{i}", "family": "second"} for i in range(3)]
    (tmp_path / "one" / "results").mkdir(parents=True)
    pd.DataFrame([*beside, row, *more]).to_csv(tmp_path / "one" / "results" / "t.csv")
    found = ledger["hangs_on_problems"]
    monkeypatch.setitem(found.__globals__, "HERE", tmp_path)
    test = {"study": "one", "table": "t", "row": {"arm": "x"}, "expect": "above"}
    assert found(test) == hangs


@pytest.mark.parametrize(("common", "marked"), [(0.049, False), (0.051, True)])
def test_a_verdict_hangs_on_the_cost_where_that_of_all_pages_leaves_it_open(
    ledger: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    common: float,
    marked: bool,
) -> None:
    row = {"family": "first", "arm": "x", "against": "grpo t1", "evaluation": "t1"}
    ends = {"difference": 0.2, "difference_low": 0.1, "difference_high": 0.3, "p_adjusted": 0.03}
    judged = {"page": "one", "common_p_adjusted": common}
    for study, name, content in (
        ("one", "t", row | ends | {"measure": "pass@1"}),
        ("one", "many", row | ends | {"measure": "pass@16"}),
        ("equal_cost", "comparisons", row | judged),
    ):
        (tmp_path / study / "results").mkdir(parents=True, exist_ok=True)
        pd.DataFrame([content]).to_csv(tmp_path / study / "results" / f"{name}.csv")
    found = ledger["hangs_on_cost"]
    monkeypatch.setitem(found.__globals__, "HERE", tmp_path)
    test = {"study": "one", "table": "t", "row": {"arm": "x"}, "expect": "above"}
    assert found(test) == marked
    assert not found(test | {"table": "many"})


def test_what_one_correction_over_all_that_was_declared_leaves_is_counted_again(
    ledger: dict[str, Any],
) -> None:
    """From the plans and the tables, with Holm's steps of other code."""
    declared, judged = 0, []
    for path in (ROOT / "experiments").glob("*/study.yaml"):
        plan = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, family in plan.get("families", {}).items():
            declared += len(family["endpoints"]) * len(family["comparisons"])
            shown = {t for t, x in plan["tables"].items() if x.get("name") == name}
            (table,) = shown or {t for t, x in plan["tables"].items() if x["kind"] == "reaching"}
            rows = pd.read_csv(path.parent / "results" / f"{table}.csv")
            for row in rows[rows["p"].notna()].to_dict("records"):
                assert row["family"] == name
                told = row["p_adjusted"] < ledger["ALPHA"]
                if shown:
                    assert told == (row["verdict"].split(" (")[0] in ("better", "worse"))
                judged.append((min(1.0, family.get("looks", 1) * row["p"]), told))
    for page, names in ledger["load_ledger"]()["scripted"].items():
        for name in names:
            rows = pd.read_csv(ROOT / "experiments" / page / "results" / f"{name}.csv")
            declared += len(rows)
            judged += [(row["p"], row["p_adjusted"] < 0.05) for row in rows.to_dict("records")]
    counted = ledger["count_declared"]()
    assert counted["comparisons"] == len(judged) == declared
    assert counted["told"] == sum(told for _, told in judged)
    corrected = adjusted([p for p, _ in judged])
    left = [
        p for p, (_, told) in zip(corrected, judged, strict=True) if told and p < ledger["ALPHA"]
    ]
    assert counted["left"] == len(left) == counted["kept"].count(";") + 1


def test_what_one_correction_leaves_is_said_in_short(ledger: dict[str, Any]) -> None:
    kept = ledger["count_declared"]()["kept"].split("; ")
    carries = [each for each in kept if "(carries_" in each and "less `grpo` in pass@" in each]
    kept_of_budget = [each for each in kept if each.startswith(("`budget` ", "`budget_tuned"))]
    assert sorted(each.split(" in ", 1)[1] for each in kept_of_budget) == [
        f"pass@1 on problems solved by the untrained policy in 50 to 100 % ({page})"
        for page in ("carries_confirmation", "carries_four_steps_fresh")
    ]
    e3 = [each for each in carries if each.startswith("`e3` ")]
    assert all(" 50 to 100 % " in each or " on easy problems " in each for each in e3)
    assert len(e3) == 3
    said = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert "none of what the paper's budget gains over GRPO in pass@16" in said
    assert "two losses of it on easy problems, and, of E3's losses, those on easy" in said
    posterior = [each for each in kept if each.startswith("`budget_by_posterior`")]
    assert len(posterior) == 1
    assert "(one by a posterior mean is left)" in said
    counted = ledger["count_declared"]()
    for name in ("README.md", "docs/results.md"):
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert f"{counted['told']} of {counted['comparisons']} declared ones are told" in text
        assert re.search(rf"would leave \[?{counted['left']}\b", text)


def test_a_family_of_some_problems_is_named_by_them_where_its_table_is_not(
    ledger: dict[str, Any],
) -> None:
    row = {"page": "one", "arm": "e3", "against": "grpo t1", "measure": "pass@1"}
    row |= {"evaluation": "t1", "ratio": float("nan"), "subset": float("nan")}
    name = ledger["name_declared"]
    assert name(row | {"family": "primary"}) == "`e3` less `grpo` in pass@1 (one)"
    assert name(row | {"family": "easy"}) == "`e3` less `grpo` in pass@1 on easy problems (one)"
    words = "solved by the untrained policy in 0 % of its 40 rollouts"
    assert name(row | {"family": "unsolved", "subset": words}).endswith("policy in 0 % (one)")


@pytest.mark.parametrize(
    ("low", "high", "least", "most", "verdict"),
    [
        (0.1, 0.3, 0.1, 0.3, "*reached*"),
        (0.1, 0.3, 0.2, 0.4, "*open*"),
        (0.1, 0.3, 0.0, 0.2, "*open*"),
        (0.1, 0.3, 0.31, 0.4, "*not reached*"),
        (0.1, 0.3, 0.0, 0.09, "*not reached*"),
        (0.0, 0.4, 0.1, 0.3, "*open*"),
    ],
)
def test_an_aim_is_reached_where_all_that_was_found_is_within_it(
    aims: dict[str, Any], low: float, high: float, least: float, most: float, verdict: str
) -> None:
    assert aims["judge"](low, high, least, most) == verdict
    for ends in ((high, low - 1), (float("nan"), high), (low, float("nan"))):
        with pytest.raises(ValueError, match="is no range"):
            aims["judge"](*ends)


def test_aims_that_were_missed_are_said_to_be(aims: dict[str, Any]) -> None:
    """Those that the pages of coverage, parity and speed call missed, and no others."""
    rows = list(aims["rows"]())
    missed = [(row.study, row.aim) for row in rows if row.verdict == "*not reached*"]
    speed = (ROOT / "experiments" / "speed" / "README.md").read_text(encoding="utf-8")
    by_default = [row for row in rows if row.scope.endswith("the default")]
    assert [row.found for row in by_default] == ["1.14", "0.78"]
    assert (
        "e3rl takes 1.14 of TRL's seconds for the embedded policy in (a) and 0.78 in (b)" in speed
    )
    assert {row.verdict for row in by_default} == {"*not reached*"}
    fastest = sum(study == "speed" for study, _ in missed) - len(by_default)
    assert fastest == speed.count("**not reached**")
    assert sorted(aim for study, aim in missed if study == "parity") == [
        "at most 0.001",
        "at most 1",
    ]
    assert [aim for study, aim in missed if study == "coverage"] == ["at most 97"] * 2
    assert {study for study, _ in missed} == {"speed", "parity", "coverage"}
    assert len({(row.what, row.aim, row.scope) for row in rows}) == len(rows)

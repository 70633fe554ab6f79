"""What is said of declared verdicts at other costs is what its tables hold."""

import json
import lzma
import math
import re
import runpy

import numpy as np
import pandas as pd
import pytest
import yaml

from e3rl.analysis.sources.runs import load_runs
from pages import ROOT
from study_scripts import study_modules

STUDY = ROOT / "experiments" / "equal_cost"
TEXT = (STUDY / "README.md").read_text(encoding="utf-8")
COSTS = ("own", "common", "end")


def comparisons() -> pd.DataFrame:
    return pd.read_csv(STUDY / "results" / "comparisons.csv")


def test_it_has_every_comparison_of_pass_at_1_that_was_declared_at_equal_tokens() -> None:
    found = comparisons()
    declared = {
        path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8"))["families"]
        for path in STUDY.parent.glob("carries_*/study.declared.yaml")
        if path.with_name("study.yaml").is_file()  # it has been judged
    }
    asked = {
        (page, name)
        for page, families in declared.items()
        for name, family in families.items()
        if not family.get("at_equal_entropy")
        and family.get("axis", "tokens") == "tokens"
        and all(end.get("measure") == "pass@1" for end in family["endpoints"])
    }
    assert set(zip(found["page"], found["family"], strict=True)) == asked
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
    assert table.count("\n| carries_") == len(changes) == 15
    for row in changes.to_dict("records"):
        assert f"| {row['page']} | {row['family']} | {row['arm']} | {row['against']} |" in table


def test_every_page_has_its_comparisons_at_all_three_costs() -> None:
    study = runpy.run_path(str(STUDY / "compare.py"))
    for page, rows in comparisons().groupby("page"):
        cells = study["cells_of_page"](rows.to_dict("records"))
        text = (STUDY.parent / str(page) / "README.md").read_text(encoding="utf-8")
        between = text.split("<!-- table: other_costs -->")[1].split("<!-- end -->")[0]
        assert between.strip() == study["as_markdown"](cells, study["WORDS"]).strip()
        assert len(cells.body) == len(rows)


def test_every_page_says_which_of_its_verdicts_another_cost_changes() -> None:
    found = comparisons()
    changed = {
        (str(row["page"]), str(row["arm"]))
        for row in found.to_dict("records")
        if len({row[f"{cost}_verdict"] for cost in COSTS}) > 1
    }
    silent = [
        (page, arm)
        for page, arm in changed
        if not any(f"`{arm}`" in each for each in paragraphs_on_cost(page))
    ]
    assert changed
    assert not silent


def paragraphs_on_cost(page: str) -> list[str]:
    """Of what a page says after its tables, what links to this study."""
    text = (STUDY.parent / page / "README.md").read_text(encoding="utf-8")
    said = re.split(r"\n\n|\n(?=- )", text.split("## What can be said")[-1])
    return [each for each in said if "../equal_cost/README.md" in each]


def test_the_verdict_says_what_the_tables_hold() -> None:
    found = comparisons()
    verdict = TEXT.split("## What can be said")[1]
    changed = found[found["own_verdict"] != found["common_verdict"]]
    assert changed[["page", "arm"]].to_numpy().tolist() == [
        ["carries_first_policies", "e3"],
        ["carries_four_steps_constants", "ts_an"],
        ["carries_small_batches", "small_batches"],
    ]
    assert f"three verdicts of {len(found)} change**" in verdict
    assert (found["own_verdict"] != found["end_verdict"]).sum() == 14
    said = f"| {len(found)} declared comparisons: at one cost for all pages three change, after as "
    studies = (STUDY.parents[1] / "docs" / "studies.md").read_text(encoding="utf-8")
    assert f"{said}many steps fourteen |" in studies
    assert "**After as many steps fourteen change**" in verdict
    shift = (found["common_difference"] - found["own_difference"]).abs()
    assert 100 * shift.max() < 1.45
    assert 100 * shift[found["page"] != "carries_abort"].max() < 1.05
    alike = (found["own_verdict"] == found["common_verdict"]) & (
        found["own_verdict"] == found["end_verdict"]
    )
    lasting = found[alike & (found["own_verdict"] != "not distinguishable")]
    assert sorted(lasting["arm"]) == [
        *("abort", "abort", "balanced_by_prompt", "budget", "budget", "budget", "budget&e3"),
        *("budget_by_entropy", "budget_by_length", "budget_cool", "budget_tuned&both_tuned"),
        *("cispo", "dapo_tuned", "dapo_tuned", "dapo_tuned", "dapo_tuned"),
        *("dapo_without_penalty", "dapo_without_penalty", "dapo_without_penalty"),
        *("e3", "e3", "e3"),
        *("four_steps", "four_steps", "grpo", "grpo", "maxrl", "overlong", "overlong"),
        *("pass_at_4", "ts_an", "ts_an&e3", "ts_an&e3"),
    ]


def test_pages_that_put_studies_together_compare_at_the_common_cost() -> None:
    common = comparisons()["common_cost"].max()
    for name, words in (("compound_arms", "pass@1 is at"), ("carries_all_seeds", "pass@4 are at")):
        folder = ROOT / "experiments" / name
        tables = yaml.safe_load((folder / "study.yaml").read_text(encoding="utf-8"))["tables"]
        assert {table["cost"] for table in tables.values()} - {math.inf} == {common}
        assert f"{words} {common:,.0f} tokens" in (folder / "README.md").read_text()
    sets = runpy.run_path(str(ROOT / "experiments" / "carries_all_seeds" / "sets.py"))
    assert sets["COMMON_TOKENS"] == common
    with study_modules(ROOT / "experiments" / "carries_across_sets", "compare") as modules:
        assert common == modules["compare"].COMMON_TOKENS


def test_the_line_is_where_other_code_finds_it_and_so_is_what_is_said() -> None:
    """By the recorded counts and tokens, without the studies' own functions."""
    module = runpy.run_path(str(STUDY / "line.py"))
    readings = [module["read_page"](page) for page in module["PAGES"]]
    cells = module["table_cells"](readings)
    assert module["as_markdown"](cells, ("page",)) in TEXT
    for reading in readings:
        folder = ROOT / "experiments" / reading.page
        early = json.loads(lzma.decompress((folder / "early.json.xz").read_bytes()))
        runs = {(run.name, run.seed): run for run in load_runs(folder / "runs")}
        gaps = []
        for sample in early:
            run = runs[sample["arm"], sample["seed"]]
            tokens = run.train["cost/tokens"].to_numpy()  # after each step
            counts = {step: run.counts["t1", step] for step in (64, 128)}
            low, high = (float((c["correct"] / c["n"]).mean()) for c in counts.values())
            line = np.interp(tokens[119], [tokens[63], tokens[127]], [low, high])
            gaps.append(line - sum(sample["right"].values()) / 16 / 1024)
        assert len(gaps) == 10
        assert np.mean(gaps) == pytest.approx((reading.line - reading.sampled).mean(), abs=1e-6)
    said = TEXT.split("**No bend shows")[1]
    first, second = (row[-1] for row in cells.body)
    assert f"a run has {first} and {second} points more on the line" in said
    share = readings[0].share
    assert f"{0.25 / (share * (1 - share)):.1f} times as much half-way" in said

"""What is said of the core study on carries is what its tables hold, and no more than an interim
look allows."""

import re

import pandas as pd
import yaml

from pages import ROOT

STUDY = ROOT / "experiments" / "carries_core"
NUMBERS = re.compile(r"(?<![\w.])[+-]?\d*\.\d+")


def test_the_verdict_says_no_other_numbers_than_the_tables() -> None:
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    tables, verdict = text.split("## What can be said", maxsplit=1)
    said = {number.lstrip("+") for number in NUMBERS.findall(verdict)}
    known = {number.lstrip("+") for number in NUMBERS.findall(tables)}
    known |= {number.replace("0.", ".", 1) for number in known}
    assert said
    assert said <= known


def test_families_that_were_declared_are_not_judged_before_all_their_seeds_have_run() -> None:
    declared = yaml.safe_load((STUDY / "study.declared.yaml").read_text(encoding="utf-8"))
    asked = yaml.safe_load((STUDY / "study.yaml").read_text(encoding="utf-8"))
    assert len(asked["seeds"]) < 10
    assert "families" not in asked
    arms = {
        arm
        for family in declared["families"].values()
        for pair in family["comparisons"]
        for arm in pair
    }
    assert set(asked["arms"]) == arms
    for name in ("primary", "greedy", "many_tries"):
        rows = pd.read_csv(STUDY / "results" / f"{name}.csv")
        compared = rows[rows["comparison"].notna()]
        assert set(compared["family"]) == {"exploratory"}
        assert set(rows["seeds"]) == {len(asked["seeds"])}
        assert set(compared["arm"]) == arms - {"grpo"}

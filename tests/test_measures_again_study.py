"""What fresh seeds confirm of the measures of difficulty follows by the protocol's rule."""

import pandas as pd

from pages import ROOT

STUDIES = ROOT / "experiments"
PAGE = (STUDIES / "carries_measures_again" / "README.md").read_text(encoding="utf-8")
FINDINGS = (  # as the protocol numbers them: arm, table, direction
    ("budget_by_length", "to_budget", -1),
    ("budget_by_entropy", "to_budget", -1),
    ("budget_by_prior", "to_budget", -1),
    ("budget_by_posterior", "pass_at_16", 1),
)


def row_of(study: str, table: str, arm: str) -> "pd.Series[float]":
    rows = pd.read_csv(STUDIES / study / "results" / f"{table}.csv")
    (place,) = rows.index[rows["arm"] == arm]
    return rows.loc[place]


def test_none_of_the_findings_is_confirmed_and_none_contradicted() -> None:
    for arm, table, sign in FINDINGS:
        there, here = (
            row_of(study, table, arm) for study in ("carries_measures", "carries_measures_again")
        )
        assert there["p_adjusted"] < 0.05  # it was told
        assert sign * there["difference"] > 0
        assert here["p_adjusted"] >= 0.05
        assert sign * here["difference"] > 0  # "have the direction"
    assert "**None of the four findings is confirmed, none contradicted.**" in PAGE
    within = [
        row_of("carries_measures_again", table, arm)["difference_low"] <= 0
        and row_of("carries_measures_again", table, arm)["difference_high"] >= 0
        for arm, table, _ in FINDINGS
    ]
    assert sum(within) == 3
    assert "three of them with intervals that contain 0" in PAGE


def test_no_arm_survives_by_the_rule_of_the_protocol() -> None:
    """Better than GRPO after the correction in one endpoint, and not worse in the other."""
    better = [
        (arm, table)
        for arm, _, _ in FINDINGS
        for table in ("pass_at_1", "pass_at_16")
        if row_of("carries_measures_again", table, arm)["verdict"] == "better"
    ]
    assert better == []
    assert "No arm survives by the protocol's rule." in " ".join(PAGE.split())


def test_what_both_pages_tell_of_length_alone() -> None:
    rows = pd.read_csv(STUDIES / "carries_measures_again" / "results" / "eleven_seeds.csv")
    rows = rows[rows["against"] == "budget t1"]
    assert set(rows["seeds"]) == {11}
    assert list(rows[rows["p_adjusted"] < 0.05]["arm"]) == ["budget_by_length"]

"""What the fresh seeds confirm of the core study follows from the tables by the protocol's rule."""

import math

import pandas as pd
import yaml

from pages import ROOT

HERE, CORE = (ROOT / "experiments" / name for name in ("carries_confirmation", "carries_core"))
TEXT = (HERE / "README.md").read_text(encoding="utf-8")
FINDINGS = (  # as the protocol numbers them: arm, table of the core study, family, direction
    ("budget", "many_tries", "many_tries", 1),
    ("e3", "primary", "primary", -1),
    ("dapo", "many_tries", "many_tries", -1),
    ("budget", "unsolved", "unsolved", 1),
    ("dapo", "unsolved", "unsolved", -1),
    ("budget", "easy", "easy", -1),
    ("e3", "easy", "easy", -1),
    ("e3", "rollouts_to", "rollouts_to", 1),
)


def row_of(study: str, table: str, arm: str) -> "pd.Series[float]":
    rows = pd.read_csv(ROOT / "experiments" / study / "results" / f"{table}.csv")
    rows = rows[rows["arm"] == arm]
    found = rows[rows["target"] == 0.4] if "target" in rows else rows
    assert len(found) == 1
    return found.iloc[0]


def test_a_finding_is_confirmed_where_its_family_tells_it_in_the_same_direction() -> None:
    table = pd.read_csv(HERE / "results" / "holds.csv")
    assert len(table) == len(FINDINGS)
    lines = TEXT.split("<!-- table: holds -->")[1].split("<!-- end -->")[0].splitlines()
    for place, (arm, core, family, sign) in enumerate(FINDINGS):
        here, there, said = (
            row_of(HERE.name, family, arm),
            row_of(CORE.name, core, arm),
            table.iloc[place],
        )
        is_ratio = "ratio" in here.index
        name, none = ("ratio", 1.0) if is_ratio else ("difference", 0.0)
        assert sign * (there[name] - none) > 0  # it is what the core study has
        told = here["p_adjusted"] < 0.05
        along = sign * (here[name] - none) > 0
        word = "neither" if not told else "confirmed" if along else "contradicted"
        assert (said["arm"], said["verdict"], said["family"]) == (arm, word, here["family"])
        assert here["family"] == family
        scale = 1 if is_ratio else 100
        for side, row in (("here", here), ("core", there)):
            for end in ("", "_low", "_high"):
                assert math.isclose(said[side + end], scale * row[name + end], rel_tol=1e-5)
        (line,) = [x for x in lines if x.startswith(f"| {place + 1} |")]
        digits = "{:.2f} [{:.2f}, {:.2f}]" if is_ratio else "{:+.1f} [{:+.1f}, {:+.1f}]"
        ends = [scale * here[name + end] for end in ("", "_low", "_high")]
        assert digits.format(*ends) in line
        assert line.endswith(f"| {word} |")
        assert f"{place + 1}. `{arm}`" in " ".join(TEXT.split("## Results")[0].split())


def test_the_samples_are_judged_by_the_family_that_was_declared_before_the_runs() -> None:
    declared = yaml.safe_load((HERE / "study.sampled.yaml").read_text(encoding="utf-8"))
    page = HERE.parent / "carries_more_policies"
    judged = yaml.safe_load((page / "study.declared.yaml").read_text(encoding="utf-8"))
    assert judged | {"runs": declared["runs"]} == declared

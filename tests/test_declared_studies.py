"""What is said of declared studies is what their tables hold, judged as they were declared."""

import re

import pandas as pd
import pytest
import yaml

from e3rl.analysis.measures.arms import ARM_LABELS
from pages import ROOT
from prose_numbers import WITH_INTERVAL, plain

STUDIES = ROOT / "experiments"
CORE = STUDIES / "carries_core"
DECLARED = {  # seeds, the first and the last
    **dict.fromkeys(("carries_core", "carries_losses", "carries_schedules"), (101, 110)),
    **dict.fromkeys(("arithmetic_schedules", "arithmetic_policies"), (201, 205)),
    "carries_weights": (101, 110),
    **dict.fromkeys(("carries_abort", "carries_rule_weights", "carries_shootout"), (101, 105)),
    "carries_more_weights": (101, 105),
    "carries_confirmation": (171, 180),
    "carries_constants": (131, 140),
    "carries_breadth": (116, 120),
    "carries_bounds": (231, 235),
    "carries_budget": (141, 150),
    "carries_budget_constants": (246, 255),
    **dict.fromkeys(("carries_four_steps", "carries_four_steps_constants"), (236, 245)),
    **dict.fromkeys(("carries_four_steps_left_out", "carries_four_steps_more"), (236, 245)),
    **dict.fromkeys(("carries_four_steps_tuned", "carries_small_batches"), (236, 245)),
    "carries_four_steps_fresh": (256, 263),
    **dict.fromkeys(("carries_fresh_advantages", "carries_fresh_parts"), (264, 273)),
    "carries_factorial": (151, 158),
    "carries_left_out": (161, 165),
    "carries_measures": (171, 175),
    "carries_measures_again": (177, 181),
    "carries_parts": (171, 180),
    "carries_more_constants": (105, 110),
    "carries_more_losses": (221, 225),
    "carries_other_problems": (211, 220),
    "carries_first_policies": (131, 140),
    "carries_prompt_weights": (121, 125),
    "carries_policies": (105, 110),
    "carries_more_policies": (171, 176),
    "carries_ten_seeds": (101, 110),
    **dict.fromkeys(("carries_replication", "carries_tuned"), (111, 115)),
}
RAN = {
    "carries_constants": (131, 138),
    "carries_budget": (141, 146),
    "carries_budget_constants": (246, 251),
    "carries_factorial": (151, 156),
    **dict.fromkeys(("carries_fresh_advantages", "carries_fresh_parts"), (264, 269)),
    "carries_more_constants": (105, 109),
}  # where the hours ended before the last seed
JUDGED = tuple(DECLARED)
judged = pytest.mark.parametrize("name", JUDGED)


@judged
def test_a_number_with_its_interval_is_said_of_the_arm_that_has_it(name: str) -> None:
    text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
    tables, verdict = text.split("## What can be said", maxsplit=1)
    owners: dict[tuple[str, ...], set[str]] = {}
    for line in tables.splitlines():
        if line.startswith("|"):
            arms = {cell.strip() for cell in line.split("|")[1:3]}  # a measure may come first
            if " mean of " in line.split("|")[1]:
                arms |= set(re.split(r"mean of | and ", line.split("|")[1].strip()))
            for found in WITH_INTERVAL.findall(line):
                owners.setdefault(as_said(found), set()).update(arms)
    said = 0
    for part in re.split(r"\n(?=- |\n)", verdict):
        arms = {ARM_LABELS.get(arm, arm) for arm in re.findall(r"`([\w@-]+)`", part)}
        for found in WITH_INTERVAL.findall(part):
            assert owners[as_said(found)] & arms, (found, arms)
            said += 1
    assert said


def name_of(side: str | list[str]) -> str:
    return side if isinstance(side, str) else "&".join(side)


def as_said(numbers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(plain, numbers))


@judged
def test_the_families_are_those_that_were_declared_and_all_their_seeds_have_run(name: str) -> None:
    study = STUDIES / name
    declared = yaml.safe_load((study / "study.declared.yaml").read_text(encoding="utf-8"))
    asked = yaml.safe_load((study / "study.yaml").read_text(encoding="utf-8"))
    families = {name: given | {"looks": 1} for name, given in asked["families"].items()}
    assert families == {name: given | {"looks": 1} for name, given in declared["families"].items()}
    for family, given in declared["families"].items():  # never more lenient than was declared
        assert asked["families"][family].get("looks", 1) >= given.get("looks", 1)
    for table, family in declared["families"].items():
        assert asked["tables"][table] == declared["tables"][table]
        rows = pd.read_csv(study / "results" / f"{table}.csv")
        wanted = {tuple(map(name_of, pair)) for pair in family["comparisons"]}
        if "reach" in family["endpoints"][0]:  # its table has the control's cost too
            rows = rows[rows["arm"] != asked["control"]]
            pairs = {(arm, asked["control"]) for arm in rows["arm"]}
        else:
            pairs = set(zip(rows["arm"], rows["against"].str.split().str[0], strict=True))
        assert pairs == wanted
        assert set(rows["family"]) == {table}
        first, last = RAN.get(name, DECLARED[name])
        assert set(rows["seeds"]) == {last - first + 1}


@judged
def test_the_protocol_is_older_than_what_comes_after_it(name: str) -> None:
    text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
    protocol, results = text.split("\n## Results\n")
    assert "<!-- table" not in protocol
    assert "eeds {} to {}".format(*DECLARED[name]) in protocol
    assert "After the protocol" in results
    if name in RAN:
        assert "should the hours end before" in " ".join(protocol.split())
        assert "seeds, {} to {}, have run and are judged".format(*RAN[name]) in results

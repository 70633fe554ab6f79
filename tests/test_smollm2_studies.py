"""What is said of SmolLM2 with a controller and schedules is what was recorded."""

import re
import runpy

import pytest

from pages import ROOT

STUDIES = ROOT / "experiments"
NUMBERS = re.compile(r"(?<![\w.])\d*\.\d+")


def test_the_table_of_temperatures_is_that_of_the_results() -> None:
    measure = runpy.run_path(str(STUDIES / "smollm2_control" / "measure.py"))
    text = (STUDIES / "smollm2_control" / "README.md").read_text()
    assert f"\n{measure['table']()}\n" in text


@pytest.mark.parametrize("name", ["smollm2_control", "smollm2_schedules"])
def test_the_verdict_says_no_other_numbers_than_the_tables(name: str) -> None:
    tables, verdict = (STUDIES / name / "README.md").read_text().split("## Verdict")
    known = set(NUMBERS.findall(tables)) | {".2"}  # .2 to 1.5: of the embedded policies
    known |= {number.removeprefix("0") for number in known}
    known |= {number.rstrip("0") for number in known}
    said = set(NUMBERS.findall(verdict))
    assert said
    assert said <= known


def test_the_schedules_were_declared_before_their_runs() -> None:
    text = (STUDIES / "smollm2_schedules" / "README.md").read_text()
    protocol, results = text.split("\n## Results\n")
    assert "<!-- table" not in protocol
    assert "**After the protocol:**" in results

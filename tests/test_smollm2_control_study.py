"""What is said of the controller on SmolLM2 is what was recorded."""

import re
import runpy

from pages import ROOT

STUDY = ROOT / "experiments" / "smollm2_control"
NUMBERS = re.compile(r"(?<![\w.])\d*\.\d+")


def test_the_table_of_temperatures_is_that_of_the_results() -> None:
    measure = runpy.run_path(str(STUDY / "measure.py"))
    assert f"\n{measure['table']()}\n" in (STUDY / "README.md").read_text()


def test_the_verdict_says_no_other_numbers_than_the_tables() -> None:
    tables, verdict = (STUDY / "README.md").read_text().split("## Verdict")
    known = set(NUMBERS.findall(tables)) | {".2"}  # .2 to 1.5: of the embedded policies
    known |= {number.removeprefix("0") for number in known}
    known |= {number.rstrip("0") for number in known}
    said = set(NUMBERS.findall(verdict))
    assert said
    assert said <= known

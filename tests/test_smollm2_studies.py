"""What is said of SmolLM2 with a controller and schedules is what was recorded."""

import re
import runpy

from pages import ROOT

STUDIES = ROOT / "experiments"


def test_the_table_of_temperatures_is_that_of_the_results() -> None:
    measure = runpy.run_path(str(STUDIES / "smollm2_control" / "measure.py"))
    text = (STUDIES / "smollm2_control" / "README.md").read_text()
    assert f"\n{measure['table']()}\n" in text


def test_the_schedules_were_declared_before_their_runs() -> None:
    text = (STUDIES / "smollm2_schedules" / "README.md").read_text()
    protocol, results = text.split("\n## Results\n")
    assert "<!-- table" not in protocol
    assert "**After the protocol:**" in results


def test_the_gains_are_in_one_order_in_all_seeds() -> None:
    text = (STUDIES / "smollm2_control" / "README.md").read_text()
    rows = re.findall(r"(?m)^\| control_(\w+) \|.*", text)
    assert rows == ["paper", "elasticity", "solve"]
    by_seed = [
        [int(steps) for steps in line.split(" | ")[4].split(", ")]
        for line in re.findall(r"(?m)^\| control_.*", text)
    ]
    assert "in the same order in all three seeds" in text
    assert [len(each) for each in by_seed] == [3, 3, 3]
    for paper, elasticity, solve in zip(*by_seed, strict=True):
        assert paper > elasticity > solve

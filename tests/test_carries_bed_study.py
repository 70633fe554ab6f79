"""What is said of the embedded default is what was sampled and recorded of it."""

import runpy
from typing import Any

import pytest

from pages import ROOT

STUDY = ROOT / "experiments" / "carries_bed"


@pytest.fixture(scope="module")
def measure() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "measure.py"))


@pytest.fixture(scope="module")
def tables(measure: dict[str, Any]) -> dict[str, str]:
    return dict(measure["tables"]())


def test_the_tables_are_those_of_the_recorded_counts(tables: dict[str, str]) -> None:
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for name, table in tables.items():
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        assert between.strip() == table.strip(), name


def test_draws_that_several_runs_have_alike_count_once(measure: dict[str, Any]) -> None:
    recorded = measure["open_runs"](measure["RUNS"])
    names = [measure["NAME"].format(seed) for seed in measure["ALL_SEEDS"]]
    runs = [measure["load_run"](recorded / name) for name in names]
    n, _ = measure["start_counts"](runs, "t1")
    assert set(n) == {44}  # 16 of seeds 101 to 103, and 4 of each of the seven others

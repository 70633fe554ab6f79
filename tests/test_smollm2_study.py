"""What is said of the recorded run of SmolLM2 is what its ledgers say."""

import re
import runpy
from typing import Any

import pytest

from e3rl.analysis.sources.runs import Run, load_run
from pages import ROOT

STUDY = ROOT / "experiments" / "smollm2"
NUMBERS = re.compile(r"[+-]?\d+\.\d+")


@pytest.fixture(scope="module")
def measure() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "measure.py"))


@pytest.fixture(scope="module")
def run() -> Run:
    return load_run(STUDY / "run")


def test_the_table_is_that_of_the_recorded_run(measure: dict[str, Any], run: Run) -> None:
    table = (STUDY / "README.md").read_text().split("<!-- table: learned -->")[1]
    assert table.split("<!-- end -->")[0].strip() == measure["table"](run).strip()


def test_the_tutorial_says_no_other_numbers(measure: dict[str, Any], run: Run) -> None:
    known = set(NUMBERS.findall(measure["table"](run)))
    tutorial = (ROOT / "docs" / "your_own.md").read_text()
    shown = re.search(r"\| rollout step .*\n\|.*\n((?:\|.*\n)+)", tutorial)
    assert shown is not None
    assert set(NUMBERS.findall(shown[1])) <= known
    assert len(NUMBERS.findall(shown[1])) == 27


def test_most_completions_had_an_answer_before_training(run: Run) -> None:
    first = run.evaluations[run.evaluations["name"] == "t1"].iloc[0]
    assert f"{100 * (1 - first['no_answer'] / (256 * 8)):.1f} % of the completions" in (
        (STUDY / "README.md").read_text()
    )


def test_it_gains_more_than_15_points(measure: dict[str, Any], run: Run) -> None:
    gain = measure["gain"](run, "t1", 1)
    assert gain.low > 0.15


def test_the_run_is_the_preset_and_took_less_than_45_minutes(run: Run) -> None:
    assert run.name == "smollm2_grpo"
    assert run.train["time/step_s"].sum() < 45 * 60
    assert len({*run.problems["problem_id"]}) == 256
    assert run.prompts["prompt_id"].nunique() == 1024

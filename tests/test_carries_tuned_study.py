"""Which runs tune the arms of carries_tuned, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest

from e3rl.analysis.sources.runs import group_by_arm, load_runs
from e3rl.analysis.tables.cells import as_markdown
from e3rl.config.differences import flatten
from pages import ROOT
from study_scripts import chosen_points, study_modules

STUDY = ROOT / "experiments" / "carries_tuned"
VALUES = ("0.005", "0.02", "0.05")


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with study_modules(STUDY, "next_runs") as modules:
        yield modules["next_runs"]


@pytest.fixture(scope="module")
def rule() -> Iterator[Any]:
    with study_modules(STUDY, "tuning") as modules:
        yield modules["tuning"]


def bonus(value: str, rate: str = "0.0002") -> str:
    return f"grpo_er_{value}_lr_{rate}"


def wanted(tuning: Any, scores: dict[str, dict[int, float]], arm: str) -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune_all(scores)[arm].todo]


def test_every_value_runs_once_then_the_two_best_again_then_rates(tuning: Any) -> None:
    scores: dict[str, dict[int, float]] = {}
    assert wanted(tuning, scores, "grpo_er") == [(bonus(value), 51) for value in VALUES]
    scores |= {bonus("0.005"): {51: 50.0}, bonus("0.02"): {51: 40.0}, bonus("0.05"): {51: 45.0}}
    assert wanted(tuning, scores, "grpo_er") == [(bonus("0.005"), 52), (bonus("0.05"), 52)]
    scores[bonus("0.005")][52] = 40.0  # a mean of 45, against 47 of .05
    scores[bonus("0.05")][52] = 49.0
    rates = [bonus("0.05", rate) for rate in ("0.0001", "0.0004", "0.0008")]
    assert wanted(tuning, scores, "grpo_er") == [(name, 51) for name in rates]


def test_the_two_best_of_four_rates_run_again(tuning: Any) -> None:
    scores = {bonus(value): {51: 30.0, 52: 30.0} for value in VALUES[1:]}
    scores |= {bonus("0.005"): {51: 45.0, 52: 45.0}, bonus("0.005", "0.0001"): {51: 20.0}}
    scores |= {bonus("0.005", "0.0004"): {51: 44.0}, bonus("0.005", "0.0008"): {51: 21.0}}
    assert wanted(tuning, scores, "grpo_er") == [(bonus("0.005", "0.0004"), 52)]
    scores[bonus("0.005", "0.0004")][52] = 47.0  # a mean of 45.5
    choice = tuning.tune_all(scores)["grpo_er"]
    assert choice.best.name == bonus("0.005", "0.0004")


def test_e3_takes_its_coefficients_from_its_parts(tuning: Any) -> None:
    assert "e3" not in tuning.tune_all({})
    scores = {f"budget_{b}_lr_0.0002": {51: 1.0, 52: 1.0} for b in ("6-10", "4-12")}
    scores |= {f"ts_an_{eta}_lr_0.0002": {51: 1.0, 52: 1.0} for eta in ("0.9", "0.8")}
    scores |= {"budget_2-14_lr_0.0002": {51: 2.0, 52: 2.0}}
    scores |= {"ts_an_0.7_lr_0.0002": {51: 2.0, 52: 2.0}}
    (at_controls, *others) = tuning.tune_all(scores)["e3"].todo
    assert at_controls[0].name == "e3_2-14_0.7_lr_0.0002"
    assert at_controls[0].overrides == (
        "budget.n_low=2",
        "budget.n_high=14",
        "temperature.annealing.eta=0.7",
    )
    assert [(point.rate, seed) for point, seed in others] == [
        (1e-4, 51),
        (4e-4, 51),
        (8e-4, 51),
    ]


def test_a_fresh_run_has_the_arms_name_and_what_was_chosen(tuning: Any) -> None:
    point = tuning.Point("ts", "ts", "0.2", ("temperature.target=0.2",), 1e-4)
    assert point.run(111, point.arm) == (
        "++seed=111 ++module.optimizer.lr=0.0001 experiment=ts name=ts temperature.target=0.2"
    )


def test_the_table_of_tuning_says_what_was_chosen_and_the_fresh_runs_have_it(
    tuning: Any, rule: Any
) -> None:
    """From the scores that are kept; the runs of tuning themselves are not."""
    best = chosen_points(tuning, STUDY)
    assert None not in best.values()
    table = pd.read_csv(STUDY / "results" / "tuning.csv", dtype={"coefficient": str})
    assert set(table["arm"][table["chosen"]]) == set(best)
    shown = as_markdown(rule.table_cells(table), ("arm", "coefficient"))
    assert shown in (STUDY / "README.md").read_text(encoding="utf-8")
    arms = group_by_arm(load_runs(STUDY / "runs"))
    assert set(arms) == {"grpo", *best}
    for arm, point in best.items():
        settings = dict(each.split("=") for each in point.overrides)
        for run in arms[arm]:
            config = flatten(run.config)
            assert run.seed >= 111
            assert config["module.optimizer.lr"] == point.rate
            for key, text in settings.items():
                assert str(config[key]) == text.replace("null", "None"), key

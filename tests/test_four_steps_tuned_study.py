"""Which runs tune the arms of carries_four_steps_tuned, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from e3rl.analysis.sources.runs import group_by_arm, load_runs
from pages import ROOT
from study_scripts import chosen_points, rules_of_tuning

STUDY = ROOT / "experiments" / "carries_four_steps_tuned"


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with rules_of_tuning(STUDY) as module:
        yield module


Scores = dict[str, dict[int, float]]


def wanted(tuning: Any, scores: Scores, arm: str = "e3") -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune_all(scores)[arm].todo]


def test_the_highest_rate_runs_last_and_can_still_be_taken(tuning: Any) -> None:
    three = ("5e-05", "0.0001", "0.0002")
    assert wanted(tuning, {}) == [(f"e3_lr_{rate}", 51) for rate in three]
    scores = {f"e3_lr_{r}": {51: s} for r, s in zip(three, (40.0, 50.0, 48.0), strict=True)}
    assert wanted(tuning, scores) == [("e3_lr_0.0001", 52), ("e3_lr_0.0002", 52)]
    scores["e3_lr_0.0001"][52] = 44.0
    scores["e3_lr_0.0002"][52] = 47.0
    assert wanted(tuning, scores) == [("e3_lr_0.0004", 51)]
    collapsed = scores | {"e3_lr_0.0004": {51: 2.0}}
    assert tuning.tune_all(collapsed)["e3"].best.rate == 2e-4  # a mean of 47.5 against 47
    better = scores | {"e3_lr_0.0004": {51: 60.0}}
    assert wanted(tuning, better) == [("e3_lr_0.0004", 52)]
    better["e3_lr_0.0004"][52] = 41.0
    assert tuning.tune_all(better)["e3"].best.rate == 4e-4  # 50.5


def test_a_coefficient_is_chosen_at_the_rate_that_was(tuning: Any) -> None:
    rates = ("5e-05", "0.0001", "0.0002", "0.0004")
    scores = {f"cool_lr_{rate}": {51: 50.0 - i} for i, rate in enumerate(rates)}
    scores["cool_lr_5e-05"][52] = scores["cool_lr_0.0001"][52] = 40.0  # a mean of 45 and 44.5
    assert wanted(tuning, scores, "cool") == [
        ("cool_0.7_lr_5e-05", 51),
        ("cool_0.9_lr_5e-05", 51),
    ]
    worse = scores | {"cool_0.7_lr_5e-05": {51: 20.0}, "cool_0.9_lr_5e-05": {51: 30.0}}
    assert wanted(tuning, worse, "cool") == [("cool_0.9_lr_5e-05", 52)]
    worse["cool_0.9_lr_5e-05"][52] = 61.0  # 45.5
    best = tuning.tune_all(worse)["cool"].best
    assert best.run(51, best.name) == (
        "++seed=51 ++module.optimizer.lr=5e-05 experiment=shootout/cool name=cool_0.9_lr_5e-05 "
        "temperature.temperature=0.9"
    )


def test_every_arm_keeps_the_control_s_rate_and_fresh_runs_have_what_was_chosen(
    tuning: Any,
) -> None:
    best = chosen_points(tuning, STUDY)
    assert {point.rate for point in best.values()} == {1e-4}
    chosen = {arm: point.value for arm, point in best.items()}
    assert chosen == {"budget_cool": "", "cool": "0.9", "budget": "2-14", "e3": "", "dapo": "0.4"}
    runs = group_by_arm(load_runs(STUDY / "runs"))
    assert runs.keys() == {"cool_tuned", "budget_tuned", "dapo_tuned"}
    for made in runs.values():
        assert {(run.seed, run.config["data"]["train"]["seed"]) for run in made} == {
            (seed, seed) for seed in range(236, 246)
        }
        for run in made:
            assert run.config["module"]["optimizer"]["lr"] == 1e-4
            assert run.config["module"]["settings"]["minibatches"] == 4
    given = {arm: made[0].config for arm, made in runs.items()}
    assert given["cool_tuned"]["temperature"]["temperature"] == 0.9
    bounds = given["budget_tuned"]["budget"]
    assert (bounds["n_low"], bounds["n_high"]) == (2, 14)
    assert given["dapo_tuned"]["loss"]["surrogate"]["clip_high"] == 0.4


def test_wider_bounds_of_the_budget_make_other_runs_from_the_fourth_pass_on() -> None:
    """They widen by two rollouts at every pass of 32 steps, from 8 on."""
    more = STUDY.parent / "carries_four_steps_more"
    runs = {(run.name, run.seed): run for each in (more, STUDY) for run in load_runs(each / "runs")}
    for seed in range(236, 246):
        entropies = [
            runs[arm, seed].train["policy/entropy"].round(5) for arm in ("budget", "budget_tuned")
        ]
        other = (entropies[0] - entropies[1]).abs() > 2e-5
        assert not other[:96].any()
        assert other[96]

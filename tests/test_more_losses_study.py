"""Which runs tune the losses of carries_more_losses, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from e3rl.analysis.sources.runs import group_by_arm, load_runs
from pages import ROOT
from study_scripts import chosen_points, rules_of_tuning

STUDY = ROOT / "experiments" / "carries_more_losses"
RATES = ("0.0001", "0.0002", "0.0004", "0.0008")


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with rules_of_tuning(STUDY) as module:
        yield module


def wanted(tuning: Any, scores: dict[str, dict[int, float]]) -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune_all(scores)["rloo"].todo]


def test_four_rates_run_and_the_better_mean_of_the_two_best_is_taken(tuning: Any) -> None:
    assert wanted(tuning, {}) == [(f"rloo_lr_{rate}", 51) for rate in RATES]
    scores = {f"rloo_lr_{r}": {51: s} for r, s in zip(RATES, (40.0, 50.0, 48.0, 1.0), strict=True)}
    assert wanted(tuning, scores) == [("rloo_lr_0.0002", 52), ("rloo_lr_0.0004", 52)]
    scores["rloo_lr_0.0002"][52] = 41.0
    scores["rloo_lr_0.0004"][52] = 44.0  # a mean of 46, against 45.5
    best = tuning.tune_all(scores)["rloo"].best
    assert best.run(221, best.arm) == (
        "++seed=221 ++module.optimizer.lr=0.0004 experiment=losses/rloo name=rloo"
    )


def test_the_fresh_runs_have_the_rates_that_tuning_chose(tuning: Any) -> None:
    best = {arm: point.rate for arm, point in chosen_points(tuning, STUDY).items()}
    for arm, runs in group_by_arm(load_runs(STUDY / "runs")).items():
        rates = {run.config["module"]["optimizer"]["lr"] for run in runs}
        assert rates == {best.get(arm, 2e-4)}

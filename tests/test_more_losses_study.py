"""Which runs tune the losses of carries_more_losses, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from pages import ROOT
from study_scripts import study_modules

STUDY = ROOT / "experiments" / "carries_more_losses"


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with (
        study_modules(ROOT / "experiments" / "carries_tuned", "tuning"),
        study_modules(STUDY, "next_runs") as modules,
    ):
        yield modules["next_runs"]


def wanted(tuning: Any, arm: str, scores: dict[str, dict[int, float]]) -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune(arm, scores).todo]


def test_four_rates_run_and_the_better_mean_of_the_two_best_is_taken(tuning: Any) -> None:
    rates = ("0.0001", "0.0002", "0.0004", "0.0008")
    assert wanted(tuning, "rloo", {}) == [(f"rloo_lr_{rate}", 51) for rate in rates]
    scores = {f"rloo_lr_{r}": {51: s} for r, s in zip(rates, (40.0, 50.0, 48.0, 1.0), strict=True)}
    assert wanted(tuning, "rloo", scores) == [("rloo_lr_0.0002", 52), ("rloo_lr_0.0004", 52)]
    scores["rloo_lr_0.0002"][52] = 41.0
    scores["rloo_lr_0.0004"][52] = 44.0  # a mean of 46, against 45.5
    assert tuning.tune("rloo", scores).best.name == "rloo_lr_0.0004"


def test_bounds_of_gspo_are_chosen_before_its_rate(tuning: Any) -> None:
    bounds = ("0.0003", "0.003", "0.03")
    assert wanted(tuning, "gspo", {}) == [(f"gspo_{b}_lr_0.0001", 51) for b in bounds]
    scores = {f"gspo_{b}_lr_0.0001": {51: s} for b, s in zip(bounds, (3.0, 5.0, 4.0), strict=True)}
    rates = ("5e-05", "0.0002", "0.0004")
    assert wanted(tuning, "gspo", scores) == [(f"gspo_0.003_lr_{rate}", 51) for rate in rates]
    point, _ = tuning.tune("gspo", scores).todo[0]
    assert point.run(51, point.name) == (
        "++seed=51 ++module.optimizer.lr=5e-05 experiment=losses/gspo name=gspo_0.003_lr_5e-05 "
        "loss.surrogate.clip_low=0.003 loss.surrogate.clip_high=0.004"
    )

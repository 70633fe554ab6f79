"""Which runs tune the bounds of carries_bounds, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from e3rl.analysis.sources.runs import group_by_arm, load_runs
from pages import ROOT
from study_scripts import chosen_points, rules_of_tuning

STUDY = ROOT / "experiments" / "carries_bounds"
RATES = ("5e-05", "0.0001", "0.0002", "0.0004")


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with rules_of_tuning(STUDY) as module:
        yield module


def wanted(tuning: Any, arm: str, scores: dict[str, dict[int, float]]) -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune_all(scores)[arm].todo]


def test_bounds_of_gspo_are_chosen_at_one_rate_and_then_its_rate(tuning: Any) -> None:
    low = ("0.0003", "0.003", "0.03")
    assert wanted(tuning, "gspo", {}) == [(f"gspo_{each}_lr_0.0001", 51) for each in low]
    scores = {f"gspo_{b}_lr_0.0001": {51: s} for b, s in zip(low, (30.0, 44.0, 41.0), strict=True)}
    others = [rate for rate in RATES if rate != "0.0001"]
    assert wanted(tuning, "gspo", scores) == [(f"gspo_0.003_lr_{rate}", 51) for rate in others]
    scores |= {
        f"gspo_0.003_lr_{r}": {51: s} for r, s in zip(others, (33.0, 50.0, 2.0), strict=True)
    }
    two = [("gspo_0.003_lr_0.0002", 52), ("gspo_0.003_lr_0.0001", 52)]
    assert wanted(tuning, "gspo", scores) == two
    scores["gspo_0.003_lr_0.0002"][52] = 40.0  # a mean of 45, against 45.5
    scores["gspo_0.003_lr_0.0001"][52] = 47.0
    best = tuning.tune_all(scores)["gspo"].best
    assert best.run(231, best.arm) == (
        "++seed=231 ++module.optimizer.lr=0.0001 experiment=losses/gspo name=gspo "
        "loss.surrogate.clip_low=0.003 loss.surrogate.clip_high=0.004"
    )


def test_clip_higher_takes_the_rate_of_its_control(tuning: Any) -> None:
    scores = {f"four_steps_lr_{rate}": {51: 40.0 - i, 52: 40.0} for i, rate in enumerate(RATES)}
    assert tuning.tune_all({})["clip_higher"].best is None
    best = tuning.tune_all(scores)["clip_higher"].best
    assert best.run(231, best.arm) == (
        "++seed=231 ++module.optimizer.lr=5e-05 experiment=losses/clip_higher name=clip_higher"
    )


def test_the_fresh_runs_have_what_tuning_chose(tuning: Any) -> None:
    best = chosen_points(tuning, STUDY)
    runs = group_by_arm(load_runs(STUDY / "runs"))
    assert runs.keys() == best.keys() | {"grpo"}
    for arm, made in runs.items():
        rate, steps = (2e-4, 1) if arm == "grpo" else (best[arm].rate, 4)
        assert {run.config["module"]["optimizer"]["lr"] for run in made} == {rate}
        assert {run.config["module"]["settings"]["minibatches"] for run in made} == {steps}
    low, high = (
        {run.config["loss"]["surrogate"][name] for run in runs["gspo"]}
        for name in ("clip_low", "clip_high")
    )
    assert low == {float(best["gspo"].value)}
    assert [*high] == [pytest.approx(4 / 3 * float(best["gspo"].value))]

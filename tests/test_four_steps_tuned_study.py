"""Which runs tune the arms of carries_four_steps_tuned, worked out by hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from pages import ROOT
from study_scripts import rules_of_tuning

STUDY = ROOT / "experiments" / "carries_four_steps_tuned"


@pytest.fixture(scope="module")
def tuning() -> Iterator[Any]:
    with rules_of_tuning(STUDY) as module:
        yield module


def wanted(tuning: Any, scores: dict[str, dict[int, float]]) -> list[tuple[str, int]]:
    return [(point.name, seed) for point, seed in tuning.tune_all(scores)["cool"].todo]


def test_the_highest_rate_runs_last_and_can_still_be_taken(tuning: Any) -> None:
    three = ("5e-05", "0.0001", "0.0002")
    assert wanted(tuning, {}) == [(f"cool_lr_{rate}", 51) for rate in three]
    scores = {f"cool_lr_{r}": {51: s} for r, s in zip(three, (40.0, 50.0, 48.0), strict=True)}
    assert wanted(tuning, scores) == [("cool_lr_0.0001", 52), ("cool_lr_0.0002", 52)]
    scores["cool_lr_0.0001"][52] = 44.0
    scores["cool_lr_0.0002"][52] = 47.0
    assert wanted(tuning, scores) == [("cool_lr_0.0004", 51)]
    collapsed = scores | {"cool_lr_0.0004": {51: 2.0}}
    assert tuning.tune_all(collapsed)["cool"].best.rate == 2e-4  # a mean of 47.5 against 47
    better = scores | {"cool_lr_0.0004": {51: 60.0}}
    assert wanted(tuning, better) == [("cool_lr_0.0004", 52)]
    better["cool_lr_0.0004"][52] = 41.0
    assert tuning.tune_all(better)["cool"].best.rate == 4e-4  # 50.5

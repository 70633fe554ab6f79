from typing import Any

import numpy as np
import pytest

from e3rl.budgets.base import SingleRound
from e3rl.budgets.mopps import Mopps

IDS = [f"p{i}" for i in range(6)]


def counts(rule: Mopps, total: int = 48, step: int = 1) -> list[int]:
    allocation = rule.decide(IDS, total, step, 1).allocation
    assert isinstance(allocation, SingleRound)
    return allocation.counts


def taught(solved: list[int], n: int, **arguments: Any) -> Mopps:
    rule = Mopps(**arguments)
    rule.observe(IDS, [np.repeat([1.0, 0.0], [c, n - c]) for c in solved])
    return rule


def test_prompts_known_to_be_near_the_target_share_the_total() -> None:
    # So many rollouts that draws are next to the pass rates 0, .1, .45, .5, .9, 1.
    rule = taught([0, 400, 1800, 2000, 3600, 4000], 4000, selected_share=1 / 3)
    assert counts(rule) == [0, 0, 24, 24, 0, 0]
    assert sorted(counts(rule, total=49)) == [0, 0, 0, 0, 24, 25]
    easy = taught([0, 400, 1800, 2000, 3600, 4000], 4000, selected_share=1 / 3, target=1.0)
    assert counts(easy) == [0, 0, 0, 0, 24, 24]


def test_prompts_never_seen_are_selected_alike_often() -> None:
    chosen = np.sum([np.array(counts(Mopps(), step=step)) > 0 for step in range(600)], axis=0)
    assert chosen.sum() == 3 * 600
    assert (np.abs(chosen - 300) < 50).all()  # 4 standard deviations are 49


def test_what_was_seen_little_gets_more_chances_than_what_is_known_to_be_hopeless() -> None:
    rule = Mopps(selected_share=0.5, decay=1.0)
    rule.observe(IDS, [np.zeros(2)] * 3 + [np.zeros(200)] * 3)
    chosen = np.sum([np.array(counts(rule, step=step)) > 0 for step in range(100)], axis=0)
    assert (chosen[:3] > 95).all()
    assert (chosen[3:] < 5).all()


def test_figures_count_the_share_left_out() -> None:
    metrics = Mopps().decide(IDS, 48, 1, 1).allocation.metrics()
    assert metrics["at_min"] == 1  # at the bound or left out
    assert metrics["at_max"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selected_share": 1.0}, "selected_share=1.0"),
        ({"target": 1.5}, "target=1.5"),
        ({"prior": (0.0, 1.0)}, "prior="),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Mopps(**arguments)


def test_fewer_than_two_rollouts_for_a_selected_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rollouts for 3 selected prompts"):
        Mopps().decide(IDS, 5, 0, 0)

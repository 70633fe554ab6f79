from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from e3rl.budgets.base import SingleRound
from e3rl.budgets.history import VisitCounts
from e3rl.budgets.vcrl import Vcrl, relative_variance

IDS = [f"p{i}" for i in range(6)]


def counts(rule: Vcrl, total: int = 48, step: int = 1) -> list[int]:
    allocation = rule.decide(IDS, total, step, 1).allocation
    assert isinstance(allocation, SingleRound)
    return allocation.counts


def visit(rule: Vcrl, right: dict[str, tuple[int, int]]) -> None:
    """Rewards of a step: right and all rollouts by prompt."""
    rule.observe(list(right), [np.repeat([1.0, 0.0], [c, n - c]) for c, n in right.values()])


def test_variances_are_shares_of_the_largest_that_so_many_rollouts_can_show() -> None:
    # 8: 16 pairs at 4 of 8, 7 at 1, 15 at 3. 5: 6 at 2 of 5, 4 at 1. 2: one pair or none.
    right = np.array([0.0, 1, 3, 4, 8, 1, 2, 3, 1, 2, 1, 0])
    n = np.array([8.0, 8, 8, 8, 8, 5, 5, 5, 2, 2, 1, 0])
    found = relative_variance(VisitCounts(right, n))
    expected = [0, 7 / 16, 15 / 16, 1, 0, 4 / 6, 1, 1, 1, 0, np.nan, np.nan]
    np.testing.assert_allclose(found, expected)


@given(n=st.integers(2, 40), data=st.data())
def test_it_is_the_unbiased_variance_over_its_maximum(n: int, data: st.DataObject) -> None:
    c = data.draw(st.integers(0, n))
    largest = n / (4 * (n - 1)) if n % 2 == 0 else (n + 1) / (4 * n)
    rewards = np.repeat([1.0, 0.0], [c, n - c])
    found = relative_variance(VisitCounts(np.array([float(c)]), np.array([float(n)])))
    assert found.tolist() == pytest.approx([rewards.var(ddof=1) / largest])


def test_known_prompts_above_the_threshold_come_first_then_untried_ones() -> None:
    # Variances 15/16, 12/16, 7/16 and 0; p4 and p5 were never seen.
    rule = Vcrl(selected_share=1 / 2, threshold=0.9)
    visit(rule, {"p0": (3, 8), "p1": (2, 8), "p2": (7, 8), "p3": (0, 8)})
    assert counts(rule) == [16, 0, 0, 0, 16, 16]
    assert sorted(counts(rule, total=49)) == [0, 0, 0, 16, 16, 17]
    lower = Vcrl(selected_share=1 / 2, threshold=0.75)
    visit(lower, {"p0": (3, 8), "p1": (2, 8), "p2": (7, 8), "p3": (0, 8)})
    got = counts(lower)
    assert got[:2] == [16, 16]
    assert sorted(got[2:]) == [0, 0, 0, 16]
    assert got[4] + got[5] == 16


def test_what_is_left_goes_to_known_prompts_below_the_threshold_by_variance() -> None:
    rule = Vcrl(selected_share=2 / 3, threshold=0.9)
    visit(rule, {"p0": (0, 8), "p1": (2, 8), "p2": (7, 8), "p3": (8, 8), "p4": (1, 5)})
    # p5 is untried; then 12/16, 4/6 and 7/16.
    assert counts(rule) == [0, 12, 12, 0, 12, 12]


def test_a_variance_fades_with_later_visits() -> None:
    rule = Vcrl(selected_share=1 / 6, threshold=0.0, decay=0.5)
    visit(rule, dict.fromkeys(IDS[:5], (0, 8)) | {"p5": (4, 8)})
    assert counts(rule)[5] == 48
    # p5: (1/2 · 1 + 0)/(1/2 + 1) = 1/3; p0: (0 + 7/16)/(3/2) = 7/24.
    visit(rule, {"p5": (0, 8), "p0": (1, 8)})
    assert counts(rule)[5] == 48
    visit(rule, {"p5": (0, 8), "p0": (1, 8)})  # 1/7 against 3/8
    assert counts(rule)[0] == 48


def test_prompts_never_seen_are_selected_alike_often() -> None:
    chosen = np.sum([np.array(counts(Vcrl(), step=step)) > 0 for step in range(600)], axis=0)
    assert chosen.sum() == 3 * 600
    assert (np.abs(chosen - 300) < 50).all()  # 4 standard deviations are 49


def test_figures_tell_how_many_of_the_selected_were_untried() -> None:
    rule = Vcrl(selected_share=1 / 2, threshold=0.9)
    visit(rule, {"p0": (4, 8)})
    assert rule.decide(IDS, 48, 1, 1).allocation.metrics()["selected_unseen"] == pytest.approx(
        2 / 3
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"selected_share": 1.0}, "selected_share=1.0"),
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"decay": 0.0}, "decay=0.0"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Vcrl(**arguments)


def test_fewer_than_two_rollouts_for_a_selected_prompt_are_refused() -> None:
    with pytest.raises(ValueError, match="5 rollouts for 3 selected prompts"):
        Vcrl().decide(IDS, 5, 0, 0)

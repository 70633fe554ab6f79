import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.rewards.shaping import LengthShaping, OverlongPenalty


def test_penalty_of_easy_right_answers_worked_by_hand() -> None:
    """b = 1000μ/(1+1000μ) = 1/2 at μ = 1e-3, and 3.5/4.5 at 3,500 tokens."""
    shaped = LengthShaping(mu=1e-3, rank_threshold=0.1)(
        [1, 1, 1], [1000, 3500, 0], [0.0, 0.1, 0.05]
    )
    assert shaped == pytest.approx([0.5, 1 - 3.5 / 4.5, 1.0])


def test_wrong_hard_and_unseen_are_left_alone() -> None:
    shaped = LengthShaping()([0, 1, 1], [1000, 1000, 1000], [0.0, 0.2, math.nan])
    assert shaped.tolist() == [0.0, 1.0, 1.0]


def test_no_loss_shrinks_with_length() -> None:
    """A share of a negative reward would pay for what is long."""
    shaped = LengthShaping()([-1, -1, 0.5], [10, 3000, 1000], [0.0, 0.0, 0.0])
    assert shaped.tolist() == [-1.0, -1.0, 0.25]


def test_zero_threshold_still_shapes_the_easiest_prompt() -> None:
    assert LengthShaping(rank_threshold=0.0)([1, 1], [1000, 1000], [0.0, 0.001]).tolist() == [
        0.5,
        1,
    ]


def test_nothing_is_shaped_without_strength() -> None:
    assert LengthShaping(mu=0.0)([1, 0], [9999, 9999], [0.0, 0.0]).tolist() == [1.0, 0.0]


@settings(deadline=None, max_examples=100)
@given(st.floats(0, 1e6), st.integers(0, 10**15), st.integers(0, 10**15))
def test_right_beats_wrong_and_shorter_is_never_worse(mu: float, one: int, other: int) -> None:
    short, long, wrong = LengthShaping(mu)([1, 1, 0], [*sorted((one, other)), 0], np.zeros(3))
    assert 1 >= short >= long > wrong == 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [({"mu": -1.0}, "mu=-1"), ({"mu": math.inf}, "mu=inf"), ({"rank_threshold": 1.5}, "=1.5")],
)
def test_bad_settings_are_named(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        LengthShaping(**arguments)


def test_mismatched_or_negative_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        LengthShaping()([1, 1], [5], [0, 0])
    with pytest.raises(ValueError, match="-5"):
        LengthShaping()([1], [-5], [0])


def test_overlong_penalty_worked_by_hand() -> None:
    """L = 20480, c = 4096: nothing up to 16384, half at 18432, 1 from 20480 on; right or wrong."""
    shaped = OverlongPenalty(limit=20480, share=0.2)(
        [1, 1, 0, 1, 0], [100, 16384, 18432, 20480, 30000], [math.nan] * 5
    )
    assert shaped == pytest.approx([1.0, 1.0, -0.5, 0.0, -1.0])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 10**6), st.floats(0.01, 1), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_overlong_penalty_never_rises_with_length(
    limit: int, share: float, one: int, other: int
) -> None:
    short, long = OverlongPenalty(limit, share)([1, 1], sorted((one, other)), [0, 0])
    assert 1 >= short >= long >= 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"limit": 0}, "limit=0"),
        ({"limit": 9, "share": 0.0}, "share=0"),
        ({"limit": 9, "share": 2}, "share=2"),
    ],
)
def test_senseless_overlong_settings_are_named(arguments: dict, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        OverlongPenalty(**arguments)


def test_overlong_lengths_are_checked_like_others() -> None:
    with pytest.raises(ValueError, match="-5"):
        OverlongPenalty(limit=9)([1], [-5], [0])

"""Factors of single rollouts around the temperature of their step."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.temperatures.base import Difficulty
from e3rl.temperatures.spreads import ByDifficulty, Ladder


def difficulty(*ranks: float) -> Difficulty:
    seen = [k for k in ranks if not math.isnan(k)]
    return Difficulty(ranks, sum(seen) / len(seen) if seen else math.nan)


def test_the_rollouts_of_a_group_take_turns_on_the_ladder() -> None:
    factors = Ladder([1.0, 0.7, 1.3]).factors(None, [0] * 5 + [1] * 2, [0, 1, 2, 3, 4, 0, 1])
    assert factors == [1.0, 0.7, 1.3, 1.0, 0.7, 1.0, 0.7]


def test_factors_follow_the_difficulty_rank_by_hand() -> None:
    # The mean rank is 0.5: 1 + 0.4·(0.2 - 0.5), 1 + 0.4·(0.8 - 0.5), and 1 for the unseen one.
    ranks = difficulty(0.2, math.nan, 0.8)
    assert ByDifficulty(0.2).factors(ranks, [0, 1, 2, 2], [0, 0, 0, 1]) == pytest.approx(
        [0.88, 1.0, 1.12, 1.12]
    )


def test_with_ranks_around_the_middle_it_is_the_published_form() -> None:
    ranks = [0.1, 0.3, 0.5, 0.7, 0.9]
    published = [1 + 0.1 * (2 * k - 1) for k in ranks]
    found = ByDifficulty(0.1).factors(difficulty(*ranks), range(5), [0] * 5)
    assert found == pytest.approx(published)


def test_nothing_is_known_of_unseen_prompts_and_in_validation() -> None:
    unseen = difficulty(math.nan, math.nan)
    assert ByDifficulty().factors(unseen, [0, 1], [0, 0]) == [1.0, 1.0]
    assert ByDifficulty().factors(None, [0, 1], [0, 0]) == [1.0, 1.0]


@given(
    st.lists(st.one_of(st.just(math.nan), st.floats(0, 0.999)), min_size=1, max_size=12),
    st.floats(0.01, 0.49),
)
@settings(deadline=None, max_examples=80)
def test_the_mean_over_prompts_stays_and_every_factor_is_positive(
    ranks: list[float], kappa: float
) -> None:
    rows = range(len(ranks))
    factors = ByDifficulty(kappa).factors(difficulty(*ranks), rows, [0] * len(ranks))
    assert sum(factors) / len(factors) == pytest.approx(1.0)
    assert min(factors) > 0
    cold = ByDifficulty(-kappa).factors(difficulty(*ranks), rows, [0] * len(ranks))
    assert [a + b for a, b in zip(factors, cold, strict=True)] == pytest.approx([2.0] * len(ranks))


@pytest.mark.parametrize("rungs", [[], [1.0], [0.8, 0.8], [1.0, 0.0], [1.0, -0.5], [1.0, math.nan]])
def test_a_ladder_needs_different_rungs_above_0(rungs: list[float]) -> None:
    with pytest.raises(ValueError, match="two or more different factors above 0"):
        Ladder(rungs)


@pytest.mark.parametrize("kappa", [0.0, 0.5, -0.5, math.nan])
def test_kappa_keeps_temperatures_above_0(kappa: float) -> None:
    with pytest.raises(ValueError, match="must lie in"):
        ByDifficulty(kappa)

"""Standard deviations, and ratios of two paired ones, with their intervals."""

import math

import numpy as np
import pytest

from e3rl.statistics.deviation import deviation_interval, ratio_of_deviations


def test_a_deviation_has_the_interval_of_chi_squared() -> None:
    found = deviation_interval([1.0, 2.0, 3.0, 4.0, 5.0])  # s² = 2.5, four degrees of freedom
    assert found.mean == pytest.approx(math.sqrt(2.5))
    # quantiles of χ² with 4 degrees: .484419 at 2.5 %, 11.143287 at 97.5 %
    assert found.low == pytest.approx(math.sqrt(4 * 2.5 / 11.143287), rel=1e-5)
    assert found.high == pytest.approx(math.sqrt(4 * 2.5 / 0.484419), rel=1e-5)


def test_a_ratio_worked_by_hand() -> None:
    """s₁² = 10, s₂² = 2.5, r = .8: t = 3·√3/(2·√(4·.36)) = 2.1651, K = 1 + .72·t₉₅²/3."""
    first, second = [2.0, 0.0, 6.0, 4.0, 8.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert np.var(first, ddof=1) == 10
    assert np.corrcoef(first, second)[0, 1] == pytest.approx(0.8)
    found = ratio_of_deviations(first, second)
    k = 1 + 0.72 * 3.1824463**2 / 3
    bounds = [math.sqrt(4 * (k + sign * math.sqrt(k * k - 1))) for sign in (-1, 1)]
    assert found.interval.mean == pytest.approx(2)
    assert [found.interval.low, found.interval.high] == pytest.approx(bounds, rel=1e-6)
    assert found.p_value == pytest.approx(0.1190, abs=1e-4)  # of t = 2.1651, three degrees


def test_the_ratio_the_other_way_round_is_the_inverse() -> None:
    first, second = np.random.default_rng(1).normal(size=(2, 9))
    one, other = ratio_of_deviations(first, second), ratio_of_deviations(second, first)
    assert one.interval.low == pytest.approx(1 / other.interval.high)
    assert one.interval.mean == pytest.approx(1 / other.interval.mean)
    assert one.p_value == pytest.approx(other.p_value)


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_holds_1_where_p_says_so(level: float) -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        first, second = rng.normal(size=(2, 6)) * [[2], [1]]
        found = ratio_of_deviations(first, second, level)
        assert (found.interval.low <= 1 <= found.interval.high) == (found.p_value >= 1 - level)


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_intervals_hold_the_truth_as_often_as_they_say(n: int, correlation: float) -> None:
    rng, draws, true = np.random.default_rng(n), 2000, 1.5
    shared, own, its = rng.normal(size=(3, draws, n))
    weights = math.sqrt(correlation), math.sqrt(1 - correlation)
    first = true * (weights[0] * shared + weights[1] * own)
    second = weights[0] * shared + weights[1] * its
    pairs = zip(first, second, strict=True)
    found = [ratio_of_deviations(mine, other).interval for mine, other in pairs]
    held = sum(each.low <= true <= each.high for each in found)
    one = deviation_interval(first[0])  # its bounds are in proportion to it
    alone = first.std(axis=1, ddof=1)
    kept = ((alone * one.low <= true * one.mean) & (true * one.mean <= alone * one.high)).sum()
    assert abs(held / draws - 0.95) < 0.017  # 3.5 standard errors of 2,000 draws
    assert abs(kept / draws - 0.95) < 0.017


def test_values_in_step_have_a_ratio_without_error() -> None:
    found = ratio_of_deviations([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.interval.low == pytest.approx(found.interval.high) == pytest.approx(2)
    assert found.p_value == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ([1, 2], [1, 2], r"first of shape \(2,\): give 3"),
        ([1, 2, 3], [1, 2, 3, 4], "3 values of one and 4 of the other"),
        ([1, 1, 1], [1, 2, 3], "equal values have no ratio"),
        ([1, 2, 3], [0.1, 0.1, 0.1], "equal values have no ratio"),  # but for rounding
    ],
)
def test_what_has_no_ratio_is_refused(first: list[float], second: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ratio_of_deviations(first, second)


def test_one_value_has_no_deviation() -> None:
    with pytest.raises(ValueError, match="give 2 numbers"):
        deviation_interval([1.0])

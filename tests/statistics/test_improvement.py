import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from e3rl.statistics.improvement import improvement_interval, probability_of_improvement
from e3rl.statistics.shares import wilson_interval

# Few distinct values, so that ties occur.
TABLES = arrays(
    np.float64, st.tuples(st.integers(1, 4), st.just(3)), elements=st.sampled_from([0.0, 0.5, 1.0])
)


def counted(a, b):
    """Every pair of runs on every task, one by one."""
    points = [
        1.0 if x > y else 0.5 if x == y else 0.0
        for task in range(len(a[0]))
        for x, y in itertools.product([row[task] for row in a], [row[task] for row in b])
    ]
    return sum(points) / len(points)


@pytest.mark.parametrize(
    ("a", "b", "probability"),
    [
        ([[2.0]], [[1.0]], 1.0),
        ([[1.0]], [[1.0]], 0.5),
        ([[1.0], [3.0]], [[2.0], [0.0]], 0.75),
        ([[1.0, 0.0]], [[0.0, 1.0]], 0.5),
    ],
)
def test_wins_are_counted_over_pairs_of_runs(a, b, probability):
    assert probability_of_improvement(a, b) == probability


@given(TABLES, TABLES)
@settings(deadline=None, max_examples=50)
def test_equals_counting_one_by_one_and_both_directions_add_to_one(a, b):
    assert probability_of_improvement(a, b) == pytest.approx(counted(a.tolist(), b.tolist()))
    both = probability_of_improvement(a, b) + probability_of_improvement(b, a)
    assert both == pytest.approx(1.0)


def test_the_interval_is_wilsons_with_the_number_that_the_placements_are_worth():
    # Placements 1/3, 2/3 and 1/2, 0, 1: variances 1/36 and 1/12 of their means.
    a, b = np.array([[0.3], [0.6]]), np.array([[0.2], [0.7], [0.4]])
    interval = improvement_interval(a, b)
    assert interval.mean == pytest.approx(0.5)
    variance = 1 / 36 + 1 / 12
    assert variance == pytest.approx(1 / 9)
    df = variance**2 / ((1 / 36) ** 2 / 1 + (1 / 12) ** 2 / 2)
    expected = wilson_interval(0.5, 0.25 / variance, df=df)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_runs_that_all_win_are_worth_as_many_trials_as_there_are_runs():
    interval = improvement_interval(np.ones((5, 3)), np.zeros((8, 3)))
    # 5/(5 + 3.8415)
    assert (interval.low, interval.high) == pytest.approx((0.5655, 1.0), abs=1e-4)


def test_runs_of_one_seed_are_pairs():
    rng = np.random.default_rng(0)
    luck = rng.normal(size=(8, 1))
    a, b = luck + 0.5 * rng.normal(size=(8, 4)), luck + 0.5 * rng.normal(size=(8, 4))
    paired, apart = improvement_interval(a, b, paired_runs=True), improvement_interval(a, b)
    assert paired.mean == apart.mean
    assert paired.high - paired.low < apart.high - apart.low


def test_the_variance_of_two_pairs_counts_twice():
    # All ties on four tasks, but the first run wins one of them against both others: placements
    # 5/8 and 1/2, and twice 9/16; their sums have the variance 1/128, their mean 1/256.
    interval = improvement_interval(
        [[0, 0, 0, 1], [0, 0, 0, 0]], np.zeros((2, 4)), paired_runs=True
    )
    expected = wilson_interval(9 / 16, 63 / 256 / (2 / 256), df=1)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_one_run_has_no_interval():
    interval = improvement_interval([[1.0]], [[0.0], [2.0]])
    assert interval.mean == 0.5
    assert np.isnan([interval.low, interval.high]).all()


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([[1.0, 2.0]], [[1.0]], "same tasks"),
        ([1.0], [1.0], "same tasks"),
        ([[float("inf")]], [[1.0]], "NaN or infinite"),
    ],
)
def test_senseless_scores_are_refused(a, b, message):
    with pytest.raises(ValueError, match=message):
        improvement_interval(a, b)

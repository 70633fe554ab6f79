import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from e3rl.statistics.improvement import improvement_interval, probability_of_improvement

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


def test_the_interval_is_the_quantile_of_all_possible_draws_of_runs():
    a = np.array([[0.3, 0.2], [0.6, 0.1]])
    b = np.array([[0.1, 0.2], [0.5, 0.4], [0.4, 0.0]])
    values = [
        probability_of_improvement(a[list(i)], b[list(j)])
        for i in itertools.product(range(2), repeat=2)
        for j in itertools.product(range(3), repeat=3)
    ]
    interval = improvement_interval(a, b, level=0.8, n_boot=20_000)
    assert interval.mean == probability_of_improvement(a, b)
    assert interval.low == pytest.approx(np.quantile(values, 0.1), abs=1e-12)
    assert interval.high == pytest.approx(np.quantile(values, 0.9), abs=1e-12)


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

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


def model_variance(p: float, n_a: int, n_b: int) -> float:
    more = (n_a + n_b) / 2 - 1
    return p * (1 - p) / (n_a * n_b) * (1 + more * ((1 - p) / (2 - p) + p / (1 + p)))


def test_one_task_without_pairs_has_newcombes_interval():
    # 3 of 6 wins. At both ends, .131 and .869, |P - 1/2| is 1.96 roots of V.
    a, b = np.array([[0.3], [0.6]]), np.array([[0.2], [0.7], [0.4]])
    interval = improvement_interval(a, b)
    assert interval.mean == pytest.approx(0.5)
    assert interval.low == pytest.approx(1 - interval.high)
    for end in (interval.low, interval.high):
        assert abs(end - 0.5) == pytest.approx(1.959964 * model_variance(end, 2, 3) ** 0.5)


def test_where_all_runs_win_the_bound_is_the_models():
    interval = improvement_interval(np.ones((5, 3)), np.zeros((8, 3)))
    assert interval.high == 1.0
    assert 1 - interval.low == pytest.approx(
        1.959964 * model_variance(interval.low, 5, 8) ** 0.5, rel=1e-5
    )


def test_several_tasks_and_pairs_leave_a_part_of_the_variance():
    # All ties on four tasks, but the first run wins one of them against both others. Task by task
    # the variances of placements are 0, 0, 0 and 1/16, on average 1/64; of all tasks together the
    # sums of pairs are 1.1875 and 1.0625, and their mean has the variance 1/256. The model's
    # variances at 1/2 (three times) and 3/4 are .10417 and .07634, that at 9/16 is .10240. So a
    # quarter is left, to the power of the root of .10240 by .10417; as much of the bound is the
    # normal's, the rest Student's with one degree, 12.706.
    interval = improvement_interval(
        [[0, 0, 0, 1], [0, 0, 0, 0]], np.zeros((2, 4)), paired_runs=True
    )
    assert interval.mean == 9 / 16
    left = 0.25 ** (0.102397 / 0.104167) ** 0.5
    square = left * 1.959964**2 + (1 - left) * 12.7062**2
    left *= (3 * 0.104167 + 0.076339) / 4 / 0.102397
    for end in (interval.low, interval.high):
        wanted = (square * left * model_variance(end, 2, 2)) ** 0.5
        assert abs(end - 9 / 16) == pytest.approx(wanted, rel=1e-4)


def test_pairs_that_always_differ_alike_are_not_taken_for_certain():
    # Every pair has the same sum of placements, so nothing is seen of how pairs differ; one win of
    # the nine that are counted is left.
    scores = np.array([[1.0], [2.0], [3.0]])
    interval = improvement_interval(scores + 0.5, scores, paired_runs=True)
    assert interval.mean == pytest.approx(6 / 9)
    assert interval.low < 0.5 < 0.8 < interval.high


def test_runs_of_one_seed_are_pairs():
    rng = np.random.default_rng(0)
    luck = rng.normal(size=(8, 1))
    a, b = luck + 0.5 * rng.normal(size=(8, 4)), luck + 0.5 * rng.normal(size=(8, 4))
    paired, apart = improvement_interval(a, b, paired_runs=True), improvement_interval(a, b)
    assert paired.mean == apart.mean
    assert paired.high - paired.low < apart.high - apart.low


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


def test_two_tasks_of_three_paired_runs_have_the_interval_that_is_worked_out_by_hand():
    """Runs 1, 2, 3 half a point better on both: six of nine pairs are won, 2/3."""
    runs = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    found = improvement_interval(runs + 0.5, runs, paired_runs=True)
    assert found.mean == pytest.approx(2 / 3)
    assert (found.low, found.high) == pytest.approx((0.397640, 0.854391), abs=1e-5)

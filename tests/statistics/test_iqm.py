import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.iqm import estimate_iqm, interquartile_mean, iqm_interval
from e3rl.statistics.student import t_bound

SCORES = st.lists(st.floats(-5, 5), min_size=1, max_size=40)


@pytest.mark.parametrize(
    ("scores", "middle"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0, 9.0], 4.0),  # a quarter of three is less than one score
        ([0.0, 1.0, 3.0, 100.0], 2.0),
        ([[9.0, 1.0, 2.0], [3.0, 4.0, -7.0], [5.0, 6.0, 0.0]], 3.0),  # two of nine cut, each end
    ],
)
def test_the_middle_half_is_averaged(scores, middle):
    assert interquartile_mean(scores) == pytest.approx(middle)


@given(SCORES)
@settings(deadline=None, max_examples=50)
def test_equals_the_mean_after_dropping_extremes_one_by_one(scores):
    kept = sorted(scores)
    for _ in range(len(scores) // 4):
        kept = kept[1:-1]
    assert interquartile_mean(scores) == pytest.approx(sum(kept) / len(kept))


def test_a_failed_run_moves_it_less_than_the_mean():
    scores = np.full((5, 6), 0.6)
    scores[0] = 0.0
    assert interquartile_mean(scores) == 0.6
    assert scores.mean() == pytest.approx(0.48)


def test_the_error_is_that_of_winsorised_runs():
    # .1 to .8 keeps .2 .. .7 of eight: runs winsorise to means .2, .35, .55, .7 of two tasks.
    scores = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8]])
    found = estimate_iqm(scores)
    assert found.mean == pytest.approx(0.45)
    by_run = 2 * np.array([0.3, 0.35, 0.55, 0.6])  # clipped to [.3, .6], over the half kept
    assert found.standard_error == pytest.approx(by_run.std(ddof=1) / 2)
    assert found.df == 1.0  # the middle half is of two runs


def test_runs_that_tie_by_chance_leave_the_noise_of_single_tasks():
    """.2 and .4 of two tasks, and the other way round: all is kept by winsorising, the rest is ±.1,
    MSₑ = .04, a quarter of it .01, and .1 over the half that is kept."""
    found = estimate_iqm([[0.2, 0.4], [0.4, 0.2]])
    assert (found.mean, found.standard_error) == pytest.approx((0.3, 0.2))
    assert found.df == 1.0
    assert estimate_iqm([[0.2, 0.4], [0.2, 0.4]]).standard_error == 0
    assert estimate_iqm([[0.3], [0.3]]).standard_error == 0  # one task tells nothing


def test_runs_that_differ_less_than_tasks_all_count():
    tasks = np.linspace(0, 1, 16)
    scores = tasks + np.array([[0.001], [0.0], [-0.001], [0.002], [0.003]])
    assert estimate_iqm(scores).df == pytest.approx(4.0, abs=0.1)


def test_bounds_are_even_on_the_scale_of_logits():
    # A mean of .2 has the logit ln 1/4; twelve times the error over .16 is three on that scale.
    scores = np.array([[0.1], [0.15], [0.25], [0.3]])
    found, interval = estimate_iqm(scores), iqm_interval(scores)
    assert found.mean == interval.mean == pytest.approx(0.2)
    half = t_bound(0.95, found.df) * found.standard_error / 0.16
    odds = interval.low / (1 - interval.low), interval.high / (1 - interval.high)
    assert odds == pytest.approx((0.25 * math.exp(-half), 0.25 * math.exp(half)))
    mirrored = iqm_interval(1 - scores)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((interval.low, interval.high))


def test_runs_that_are_nearly_all_at_an_edge_have_bounds_that_are_shares():
    interval = iqm_interval([[0.0], [0.0], [0.0], [0.9]])
    assert (interval.mean, interval.low) == (0.0, 0.0)
    assert interval.high <= 1
    few = iqm_interval([[0.0], [0.0], [0.01], [0.99]])
    assert 0 <= few.low < few.high <= 1


def test_one_run_has_no_interval():
    interval = estimate_iqm([[0.1, 0.2, 0.3]]).interval()
    assert interval.mean == pytest.approx(0.2)
    assert np.isnan([interval.low, interval.high]).all()


@pytest.mark.parametrize(
    ("scores", "message"),
    [([[]], "got 0"), ([[1.0, float("nan")]], "1 are NaN"), ([1.0, 2.0], r"\(runs, tasks\)")],
)
def test_senseless_scores_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        estimate_iqm(scores)

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.iqm import interquartile_mean, iqm_interval

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


def test_the_interval_is_the_quantile_of_all_possible_draws_of_runs():
    scores = np.array([[0.1, 0.5], [0.2, 0.9], [0.7, 0.8]])
    draws = itertools.product(range(3), repeat=3)
    values = [interquartile_mean(scores[list(draw)]) for draw in draws]
    interval = iqm_interval(scores, level=0.8, n_boot=20_000)
    assert interval.mean == interquartile_mean(scores)
    assert interval.low == pytest.approx(np.quantile(values, 0.1), abs=1e-12)
    assert interval.high == pytest.approx(np.quantile(values, 0.9), abs=1e-12)


def test_one_run_has_no_interval():
    interval = iqm_interval([[0.1, 0.2, 0.3]])
    assert interval.mean == pytest.approx(0.2)
    assert np.isnan([interval.low, interval.high]).all()


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ([[]], {}, "got 0"),
        ([[1.0, float("nan")]], {}, "1 are NaN"),
        ([1.0, 2.0], {}, r"\(runs, tasks\)"),
        ([[1.0]], {"level": 0.0}, "level=0.0"),
    ],
)
def test_senseless_scores_are_refused(scores, options, message):
    with pytest.raises(ValueError, match=message):
        iqm_interval(scores, **options)

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.apportion import water_fill

EIGHTHS = np.arange(8) / 8
PASS_RATES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1 / 9])


def by_index(n):
    return np.arange(n, dtype=np.uint64)


@pytest.mark.parametrize(
    ("n_min", "n_max", "expected"),
    [(4, 12, [4, 5, 6, 7, 9, 10, 11, 12]), (6, 10, [6, 7, 7, 8, 8, 9, 9, 10])],
)
def test_evenly_spread_ranks_give_the_golden_counts(n_min, n_max, expected):
    assert water_fill(EIGHTHS, 64, n_min, n_max, by_index(8)).tolist() == expected


def test_what_the_cap_takes_from_the_hardest_goes_to_the_others():
    counts = water_fill([0.9, 0.1, 0.1, 0.1], 32, 4, 12, by_index(4))
    assert counts.tolist() == [12, 7, 7, 6]


def test_neyman_weights_give_the_golden_counts():
    weights = np.sqrt(PASS_RATES * (1 - PASS_RATES))
    counts = water_fill(weights, 64, 2, 32, by_index(8))
    assert counts.tolist() == [5, 8, 10, 11, 10, 7, 5, 8]


def test_equal_weights_split_exactly_even_where_float_sums_fall_short():
    # 0.7 / (0.7 + 0.7 + 1e-8) * 8 would floor to 3.
    assert water_fill([0.7, 0.7], 8, 0, 8, by_index(2)).tolist() == [4, 4]


def test_zero_weights_get_more_than_the_minimum_only_when_the_others_are_full():
    assert water_fill([1, 0, 0], 12, 2, 8, by_index(3)).tolist() == [8, 2, 2]
    assert water_fill([1, 0, 0], 15, 2, 8, by_index(3)).tolist() == [8, 4, 3]
    assert water_fill([0, 0, 0], 15, 2, 8, by_index(3)).tolist() == [5, 5, 5]


def test_weights_beyond_the_reach_of_float64_still_come_in_order():
    counts = water_fill([1.0, 3e-200, 1e-200, 0.0], 16, 0, 8, by_index(4))
    assert counts.tolist() == [8, 6, 2, 0]


def test_bounds_may_differ_between_prompts():
    assert water_fill([1, 1, 1], 12, [0, 2, 4], [3, 9, 9], by_index(3)).tolist() == [2, 4, 6]
    # The first is full at 2; 7 more are shared by the two others: 2 + 3.5 and 4 + 3.5.
    assert water_fill([1, 1, 1], 15, [0, 2, 4], [2, 9, 9], by_index(3)).tolist() == [2, 6, 7]


def test_the_smaller_key_wins_the_last_rollout():
    first = water_fill([1, 1, 1], 10, 0, 8, np.array([5, 9, 7], dtype=np.uint64))
    moved = water_fill([1, 1, 1], 10, 0, 8, np.array([9, 7, 5], dtype=np.uint64))
    assert first.tolist() == [4, 3, 3]
    assert moved.tolist() == [3, 3, 4]


@pytest.mark.parametrize(
    ("total", "n_min", "n_max", "numbers"),
    [(16, 10, 12, "total=16.*n_min=10.*n_max=12"), (64, 4, 12, "total=64.*n_min=4.*n_max=12")],
)
def test_an_impossible_total_is_named_with_both_bounds(total, n_min, n_max, numbers):
    with pytest.raises(ValueError, match=numbers):
        water_fill([0.1, 0.9], total, n_min, n_max, by_index(2))


@pytest.mark.parametrize(
    ("weights", "n_min", "n_max", "message"),
    [
        ([1, 1], -1, 8, "n_min=-1"),
        ([1, 1], 5, 3, "n_min=5, n_max=3"),
        ([1, -1], 0, 8, "weights must be finite"),
        ([1, np.nan], 0, 8, "weights must be finite"),
        ([1, 1, 1], 0, 8, "must both be"),
        ([1, 1], np.array([0.5, 1.0]), 8, "whole numbers"),
    ],
)
def test_senseless_inputs_are_refused(weights, n_min, n_max, message):
    with pytest.raises(ValueError, match=message):
        water_fill(weights, 8, n_min, n_max, by_index(2))


@st.composite
def problems(draw):
    n = draw(st.integers(1, 12))
    weight = st.one_of(
        st.sampled_from([0.0, 1.0, 0.5, 1 / 3, 1e-9, 1e-30, 5e-324]), st.floats(0, 100)
    )
    weights = np.array(draw(st.lists(weight, min_size=n, max_size=n)))
    low = np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    high = low + np.array(draw(st.lists(st.integers(0, 20), min_size=n, max_size=n)))
    total = draw(st.integers(int(low.sum()), int(high.sum())))
    keys = np.array(draw(st.permutations(range(n))), dtype=np.uint64)
    return weights, total, low, high, keys


@given(problems())
@settings(deadline=None, max_examples=60)
def test_the_sum_is_exact_within_hard_bounds(problem):
    weights, total, low, high, keys = problem
    counts = water_fill(weights, total, low, high, keys)
    assert counts.sum() == total
    assert (counts >= low).all()
    assert (counts <= high).all()


@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_permuting_the_prompts_permutes_the_counts(problem, random):
    weights, total, low, high, keys = problem
    order = np.array(random.sample(range(len(keys)), len(keys)))
    counts = water_fill(weights, total, low, high, keys)
    shuffled = water_fill(weights[order], total, low[order], high[order], keys[order])
    np.testing.assert_array_equal(shuffled, counts[order])


@given(problems())
@settings(deadline=None, max_examples=60)
def test_of_two_open_prompts_the_heavier_never_gets_less(problem):
    weights, total, _, _, keys = problem
    total = min(total, 20 * len(keys))
    counts = water_fill(weights, total, 0, 20, keys)
    order = np.argsort(weights, kind="stable")
    for lighter, heavier in itertools.pairwise(order):
        if weights[lighter] < weights[heavier]:
            assert counts[lighter] <= counts[heavier]


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=8), st.integers(0, 60))
@settings(deadline=None, max_examples=100)
def test_no_count_is_a_whole_rollout_away_from_the_bisected_share(weights, extra):
    weights = np.array(weights)
    total = min(extra, 10 * weights.size)
    low, high = 0.0, 1e6
    for _ in range(200):
        level = (low + high) / 2
        filled = np.minimum(level * weights, 10).sum()
        low, high = (level, high) if filled < total else (low, level)
    shares = np.minimum(high * weights, 10)
    counts = water_fill(weights, total, 0, 10, by_index(weights.size))
    assert (np.abs(counts - shares) < 1 + 1e-6).all()

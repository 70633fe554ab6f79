import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.pass_at_k import max_at_k, mean_at_n, pass_at_k


@pytest.mark.parametrize(
    ("k", "expected"), [(1, 0.1875), (4, 0.607143), (8, 0.9), (14, 1.0), (16, 1.0)]
)
def test_three_of_sixteen_give_the_golden_values(k, expected):
    assert pass_at_k([16], [3], k)[0] == pytest.approx(expected, abs=5e-7)


@given(st.integers(1, 9), st.data())
@settings(deadline=None, max_examples=60)
def test_it_is_the_share_of_subsets_with_a_right_sample(n, data):
    c = data.draw(st.integers(0, n))
    k = data.draw(st.integers(1, n))
    subsets = list(itertools.combinations([True] * c + [False] * (n - c), k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k([n], [c], k)[0] == pytest.approx(expected, abs=1e-12)


def test_it_is_unbiased_for_one_minus_the_chance_that_k_tries_fail():
    n, k, p = 10, 4, 0.3
    c = np.arange(n + 1)
    chance = np.array([math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in c])
    assert (chance * pass_at_k(np.full(n + 1, n), c, k)).sum() == pytest.approx(1 - (1 - p) ** k)


def test_problems_may_have_different_numbers_of_samples():
    np.testing.assert_allclose(pass_at_k([2, 4, 8], [1, 1, 0], 2), [1.0, 0.5, 0.0])


def test_one_try_is_the_share_of_right_samples():
    n, c = np.array([3, 7, 16]), np.array([1, 7, 5])
    np.testing.assert_allclose(pass_at_k(n, c, 1), mean_at_n(n, c))
    np.testing.assert_allclose(mean_at_n(n, c), [1 / 3, 1.0, 5 / 16])


def test_large_numbers_of_samples_stay_finite():
    value = pass_at_k([4096], [8], 512)[0]
    exact = 1 - math.comb(4088, 512) / math.comb(4096, 512)
    assert value == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        ([16, 4], [1, 1], 8, "pass@8 needs at least 8 samples.*1 of 2 have fewer .minimum 4"),
        ([16], [1], 0, "k must be at least 1"),
        ([4], [5], 1, "must lie in 0..n"),
        ([4], [-1], 1, "must lie in 0..n"),
    ],
)
def test_impossible_counts_are_refused(n, c, k, message):
    with pytest.raises(ValueError, match=message):
        pass_at_k(n, c, k)


def test_the_mean_of_no_samples_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        mean_at_n([0], [0])


@given(st.lists(st.sampled_from([0.0, 0.3, 1.0, -2.0]), min_size=1, max_size=7), st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_max_at_k_is_the_mean_of_the_largest_over_all_subsets(rewards, k):
    k = min(k, len(rewards))
    largest = [max(subset) for subset in itertools.combinations(rewards, k)]
    assert max_at_k(rewards, k) == pytest.approx(sum(largest) / len(largest))


def test_max_at_k_of_right_and_wrong_is_pass_at_k():
    for right in range(9):
        rewards = [1.0] * right + [0.0] * (8 - right)
        assert max_at_k(rewards, 4) == pytest.approx(float(pass_at_k(8, right, 4)))


@pytest.mark.parametrize("k", [0, 4])
def test_max_at_k_needs_k_samples(k):
    with pytest.raises(ValueError, match=rf"max@{k} of 3 samples: k must lie in 1..3"):
        max_at_k([1.0, 0.0, 0.5], k)

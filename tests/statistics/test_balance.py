import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.balance import balance, imbalance

LOADS = st.lists(st.integers(0, 40) | st.floats(0, 1e6), min_size=1, max_size=24)


def by_index(n):
    return np.arange(n, dtype=np.uint64)


def sums_of(loads, part, parts):
    return np.bincount(part, weights=np.asarray(loads, dtype=float), minlength=parts)


def test_swaps_reach_what_longest_first_misses():
    # Longest first ends with 3 + 2 + 2 and 3 + 2, and with 8 + 5 + 4 and 7 + 6.
    for loads, best in (([3, 3, 2, 2, 2], 6), ([8, 7, 6, 5, 4], 15)):
        assert sums_of(loads, balance(loads, 2, by_index(5)), 2).tolist() == [best, best]


def test_one_part_gets_everything_and_as_many_parts_as_items_one_each():
    assert balance([3, 1, 2], 1, by_index(3)).tolist() == [0, 0, 0]
    assert balance([3, 1, 2], 3, by_index(3)).tolist() == [0, 2, 1]


def test_of_equal_loads_the_smaller_key_comes_first():
    assert balance([1, 1, 1, 1], 2, np.array([7, 3, 9, 5], dtype=np.uint64)).tolist() == [
        0,
        0,
        1,
        1,
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 20), min_size=2, max_size=7), st.integers(2, 3))
def test_small_cases_are_within_the_bound_of_the_best_by_enumeration(loads, parts):
    if len(loads) < parts:
        return
    found = sums_of(loads, balance(loads, parts, by_index(len(loads))), parts).max()
    best = min(
        sums_of(loads, np.array(part), parts).max()
        for part in itertools.product(range(parts), repeat=len(loads))
    )
    assert best <= found <= (4 / 3 - 1 / (3 * parts)) * best + 1e-9


@settings(deadline=None, max_examples=60)
@given(LOADS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_no_move_or_swap_helps_no_part_is_empty_and_order_does_not_matter(loads, parts, random):
    parts = min(parts, len(loads))
    n, load = len(loads), np.array(loads, dtype=float)
    part = balance(loads, parts, by_index(n))
    sums = sums_of(loads, part, parts)
    assert set(part.tolist()) == set(range(parts))
    if (load > 0).sum() >= parts:
        assert (sums > 0).all()
    full = int(sums.argmax())
    least = 1e-8 * load.sum()
    for i in np.flatnonzero(part == full):
        for other in set(range(parts)) - {full}:
            for y in [0.0, *load[part == other]]:
                lost = load[i] - y
                assert max(sums[full] - lost, sums[other] + lost) >= sums[full] - least
    order = list(range(n))
    random.shuffle(order)
    shuffled = balance(load[order], parts, by_index(n)[order])
    assert shuffled.tolist() == part[order].tolist()


@pytest.mark.parametrize(
    ("loads", "parts", "message"),
    [
        ([1.0], 2, "1 items cannot fill 2 parts"),
        ([1.0, 2.0], 0, "cannot fill 0 parts"),
        ([1.0, -2.0], 1, r"finite and >= 0, got \[1.0, -2.0\]"),
        ([1.0, np.nan], 1, "finite"),
        ([[1.0]], 1, "must both be"),
    ],
)
def test_impossible_shares_are_refused(loads, parts, message):
    with pytest.raises(ValueError, match=message):
        balance(loads, parts, by_index(len(loads)))


def test_imbalance_is_the_largest_share_over_the_mean():
    assert imbalance([3.0, 1.0]) == 1.5
    assert imbalance([2.0, 2.0, 2.0]) == 1.0
    assert imbalance([0.0, 0.0]) == 1.0

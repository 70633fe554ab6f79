import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.greedy import greedy_marginal_gain

PASS_RATES = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98, 1 / 9])


def by_index(n):
    return np.arange(n, dtype=np.uint64)


def bought_one_by_one(table, total, low, high, keys):
    """The definition: the best next gain, again and again; `table[i, n]` is a gain."""
    counts = low.tolist()
    heap = [(-table[i, n], keys[i], i) for i, n in enumerate(counts) if n < high[i]]
    heapq.heapify(heap)
    for _ in range(total - sum(counts)):
        _, _, i = heapq.heappop(heap)
        counts[i] += 1
        if counts[i] < high[i]:
            heapq.heappush(heap, (-table[i, counts[i]], keys[i], i))
    return counts


@st.composite
def problems(draw):
    n, width = draw(st.integers(1, 10)), 12
    # Few different gains, so that ties are common, within prompts as between them.
    steps = st.sampled_from([0.0, 0.0, 0.5, 1.0, 1e-300, 3.0])
    drops = [draw(st.lists(steps, min_size=width, max_size=width)) for _ in range(n)]
    table = np.cumsum(np.array(drops), axis=1)[:, ::-1] - draw(st.sampled_from([0.0, 5.0]))
    low = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
    high = low + np.array(draw(st.lists(st.integers(0, 8), min_size=n, max_size=n)))
    total = draw(st.integers(int(low.sum()), int(high.sum())))
    keys = np.array(draw(st.permutations(range(n))), dtype=np.uint64)
    return table, total, low, high, keys


@pytest.mark.end_to_end
@given(problems())
@settings(deadline=None, max_examples=100)
def test_the_counts_are_those_of_buying_one_by_one(problem):
    table, total, low, high, keys = problem
    counts = greedy_marginal_gain(lambda i, n: table[i, n], total, low, high, keys)
    assert counts.tolist() == bought_one_by_one(table, total, low, high, keys)


@pytest.mark.end_to_end
@given(problems(), st.data())
@settings(deadline=None, max_examples=60)
def test_prompts_of_a_kind_get_what_they_would_get_one_by_one(problem, data):
    table, _, low, high, keys = problem
    n, kinds = len(keys), data.draw(st.integers(1, len(keys)))
    others = st.lists(st.integers(0, kinds - 1), min_size=n - kinds, max_size=n - kinds)
    kind = np.array(data.draw(st.permutations([*range(kinds), *data.draw(others)])))
    low, high = low[kind], high[kind]
    total = data.draw(st.integers(int(low.sum()), int(high.sum())))
    counts = greedy_marginal_gain(lambda i, n: table[i, n], total, low, high, keys, kinds=kind)
    assert counts.tolist() == bought_one_by_one(table[kind], total, low, high, keys)


def bought_within_budget(table, budget, low, high, keys, costs):
    """The best gain per cost, again and again, until the next one is too dear."""
    counts = low.tolist()
    left = budget - sum(n * c for n, c in zip(counts, costs, strict=True))
    while True:
        open_rows = [i for i, n in enumerate(counts) if n < high[i]]
        if not open_rows:
            return counts
        best = min(open_rows, key=lambda i: (-table[i, counts[i]] / costs[i], keys[i]))
        if costs[best] > left + 1e-9:
            return counts
        counts[best] += 1
        left -= costs[best]


@pytest.mark.end_to_end
@given(problems(), st.data())
@settings(deadline=None, max_examples=80)
def test_with_costs_the_best_gain_per_cost_is_bought_until_the_next_is_too_dear(problem, data):
    table, total, low, high, keys = problem
    n = len(keys)
    costs = np.array(data.draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=n, max_size=n)))
    budget = total * costs.mean()
    if (low * costs).sum() > budget:
        with pytest.raises(ValueError, match="do not pay for n_min"):
            greedy_marginal_gain(lambda i, k: table[i, k], total, low, high, keys, costs)
        return
    counts = greedy_marginal_gain(lambda i, k: table[i, k], total, low, high, keys, costs)
    assert (counts * costs).sum() <= budget + 1e-9
    assert counts.tolist() == bought_within_budget(table, budget, low, high, keys, costs)


def test_gains_per_cost_may_be_given_in_any_measure_of_their_order():
    costs = np.array([1.0, 2.0, 4.0, 1.5, 3.0, 2.5, 1.0, 2.0])

    def logs(i, n):
        return np.log(knapsack_gain(i, n))

    def subtract(gain, cost):
        return lambda i, n: gain(i, n) - np.log(cost[i])

    found = greedy_marginal_gain(logs, 64, 2, 32, by_index(8), costs, per_cost=subtract)
    plain = greedy_marginal_gain(knapsack_gain, 64, 2, 32, by_index(8), costs)
    assert found.tolist() == plain.tolist()
    assert len(set(found.tolist())) > 3


def test_equal_costs_change_nothing():
    counts = greedy_marginal_gain(knapsack_gain, 64, 2, 32, by_index(8), np.full(8, 3.7))
    assert counts.tolist() == [2, 16, 11, 7, 8, 2, 2, 16]


@pytest.mark.parametrize("cost", [0.0, -1.0, np.nan, np.inf])
def test_costs_must_be_positive_numbers(cost):
    with pytest.raises(ValueError, match="costs must be finite and > 0"):
        greedy_marginal_gain(knapsack_gain, 16, 2, 32, by_index(2), [1.0, cost])


@pytest.mark.end_to_end
@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=100)
def test_permuting_the_prompts_permutes_the_counts(problem, random):
    table, total, low, high, keys = problem
    order = np.array(random.sample(range(len(keys)), len(keys)))
    counts = greedy_marginal_gain(lambda i, n: table[i, n], total, low, high, keys)
    shuffled = greedy_marginal_gain(
        lambda i, n: table[order][i, n], total, low[order], high[order], keys[order]
    )
    np.testing.assert_array_equal(shuffled, counts[order])


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(0, 200))
@settings(deadline=None, max_examples=100)
def test_gains_that_rise_by_rounding_still_give_the_exact_sum(seed, n, total):
    noise = np.random.default_rng(seed).normal(size=(n, 40))
    total = min(total, 40 * n)
    counts = greedy_marginal_gain(lambda i, k: noise[i, k], total, 0, 40, by_index(n))
    assert counts.sum() == total
    assert (counts >= 0).all()
    assert (counts <= 40).all()


def test_an_impossible_total_is_named_with_both_bounds():
    with pytest.raises(ValueError, match=r"total=64.*n_min=4.*n_max=12"):
        greedy_marginal_gain(lambda i, n: 1.0 * n, 64, 4, 12, by_index(2))


def knapsack_gain(i, n):
    p = PASS_RATES[i]
    return (p**n * (1 - p) + (1 - p) ** n * p) * p * (1 - p) ** 2


def test_knapsack_utilities_give_the_golden_counts_and_value():
    counts = greedy_marginal_gain(knapsack_gain, 64, 2, 32, by_index(8))
    assert counts.tolist() == [2, 16, 11, 7, 8, 2, 2, 16]
    p = PASS_RATES
    value = ((1 - p**counts - (1 - p) ** counts) * p * (1 - p) ** 2).sum()
    assert value == pytest.approx(0.442749, abs=5e-7)


def test_hit_utilities_give_the_golden_counts():
    posteriors = [(1, 9), (1, 3), (3, 7), (5, 5), (9, 1)]
    gains = np.array(
        [
            [
                a / (a + b + n) * np.prod([(b + j) / (a + b + j) for j in range(n)])
                for n in range(40)
            ]
            for a, b in posteriors
        ]
    )
    counts = greedy_marginal_gain(lambda i, n: gains[i, n], 40, 2, 40, by_index(5))
    assert counts.tolist() == [13, 10, 9, 6, 2]


@given(
    st.lists(st.floats(0.02, 0.98), min_size=1, max_size=4),
    st.integers(0, 8),
    st.integers(1, 4),
)
@settings(deadline=None, max_examples=60)
def test_greedy_reaches_the_best_value_of_all_allocations(rates, total, cap):
    total = min(total, cap * len(rates))

    misses = 1 - np.array(rates)

    def utility(i, n):
        return 1 - misses[i] ** n

    counts = greedy_marginal_gain(
        lambda i, n: utility(i, n + 1) - utility(i, n), total, 0, cap, by_index(len(rates))
    )
    best = max(
        sum(utility(i, n) for i, n in enumerate(split))
        for split in itertools.product(range(cap + 1), repeat=len(rates))
        if sum(split) == total
    )
    assert counts.sum() == total
    assert sum(utility(i, n) for i, n in enumerate(counts)) == pytest.approx(best)


def test_equal_gains_follow_the_keys_wherever_the_prompt_stands():
    keys = np.array([3, 1, 2], dtype=np.uint64)
    assert greedy_marginal_gain(lambda i, n: -1.0 * n, 5, 0, 9, keys).tolist() == [1, 2, 2]


def test_a_gain_that_is_not_a_number_is_named():
    with pytest.raises(ValueError, match=r"gains\(0, 2\) is NaN"):
        greedy_marginal_gain(lambda i, n: n * np.nan, 3, 1, 4, by_index(1))

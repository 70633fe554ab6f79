import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.base import SingleRound
from e3rl.budgets.cero import Cero
from e3rl.budgets.utility import Cost

SATURATION = 5.0


def utility(value: float, n: int) -> float:
    """Uᵢ(N) = v · s · (1 - exp(-N/s))."""
    return value * SATURATION * (1 - math.exp(-n / SATURATION))


def counts_of(rule: Cero, ids: list[str], total: int) -> list[int]:
    allocation = rule.decide(ids, total, 3, 1).allocation
    assert isinstance(allocation, SingleRound)
    return allocation.counts


@settings(deadline=None, max_examples=30)
@given(
    visits=st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 6)).filter(lambda x: sum(x) > 0),
        min_size=1,
        max_size=4,
    ),
    extra=st.integers(0, 16),
)
def test_no_split_adds_more_utility_to_what_prompts_had(
    visits: list[tuple[int, int]], extra: int
) -> None:
    rule = Cero(SATURATION, n_low=2, n_high=6)
    ids = [f"p{i}" for i in range(len(visits))]
    rule.observe(ids, [np.repeat([1.0, 0.0], visit) for visit in visits])
    total = 2 * len(ids) + extra % (4 * len(ids) + 1)

    def added(counts: tuple[int, ...]) -> float:
        found = 0.0
        for (right, wrong), n in zip(visits, counts, strict=True):
            a, b = 1 + right, 1 + wrong
            value = a * b / ((a + b) * (a + b + 1))  # E[p(1 - p)] of Beta(a, b)
            had = right + wrong
            found += utility(value, had + n) - utility(value, had)
        return found

    splits = itertools.product(range(2, 7), repeat=len(ids))
    best = max(added(n) for n in splits if sum(n) == total)
    assert added(tuple(counts_of(rule, ids, total))) == pytest.approx(best)


def test_of_prompts_believed_alike_the_one_that_had_more_gets_less() -> None:
    rule = Cero(16.0, n_low=2, n_high=64)
    # Equal shares; E[p(1 - p)] is 5·5/(10·11) = .227 and 13·13/(26·27) = .241.
    rule.observe(["few", "many"], [np.repeat([1.0, 0.0], [4, 4]), np.repeat([1.0, 0.0], [12, 12])])
    few, many = counts_of(rule, ["few", "many"], 32)
    # Equal marginal worth: 8 + few + 16·ln(1/.227) = 24 + many + 16·ln(1/.241) within a rollout.
    apart = 16 + 16 * math.log((25 / 110) / (169 / 702))
    assert abs(few - many - apart) <= 1
    assert few + many == 32


def test_small_saturation_makes_the_rollouts_of_all_passes_alike() -> None:
    rule = Cero(0.5, n_low=2, n_high=64)
    rule.observe(["few", "many"], [np.repeat([1.0, 0.0], [1, 3]), np.repeat([1.0, 0.0], [6, 6])])
    few, many = counts_of(rule, ["few", "many"], 24)
    assert 4 + few == 12 + many


def test_prompts_that_had_thousands_of_rollouts_are_still_told_apart() -> None:
    rule = Cero(1.0, n_low=2, n_high=64)
    rule.observe(["few", "many"], [np.repeat([1.0, 0.0], [900, 900]), np.repeat([1.0, 0.0], 904)])
    assert counts_of(rule, ["few", "many"], 24) == [16, 8]  # 1,800 + 16 = 1,808 + 8


@pytest.mark.parametrize("saturation", [1.0, 0.05, 0.01, 1e-6])
def test_of_prompts_that_nothing_is_known_of_none_takes_all_by_a_small_saturation(
    saturation: float,
) -> None:
    ids = [f"p{i}" for i in range(8)]
    assert counts_of(Cero(saturation), ids, 128) == [16] * 8


@pytest.mark.parametrize("cost", ["rollouts", "tokens"])
def test_worths_too_small_for_numbers_still_have_an_order(cost: Cost) -> None:
    ids = [f"p{i}" for i in range(8)]
    rule = Cero(0.01, cost=cost)
    rule.describe(ids[1:], {"length": np.full(7, 5.0)})
    rule.observe(ids[1:], [np.repeat([1.0, 0.0], [20, 20])] * 7)
    unseen, *seen = counts_of(rule, ids, 12 * 8)
    assert (unseen, sorted(seen)) == (47, [7] * 7)  # 47 and 40 + 7 in all passes


@pytest.mark.parametrize(("lengths", "counts"), [((4, 5), [9, 8]), ((5, 4), [8, 9])])
def test_of_worths_too_small_for_numbers_the_largest_per_token_is_bought(
    lengths: tuple[float, float], counts: list[int]
) -> None:
    ids = ["one", "other"]
    rule = Cero(0.01, cost="tokens")
    rule.describe(ids, {"length": np.array(lengths, dtype=np.float64)})
    rule.observe(ids, [np.repeat([1.0, 0.0], [20, 20])] * 2)
    assert counts_of(rule, ids, 17) == counts  # the odd one is of the shorter completions


@pytest.mark.parametrize("saturation", [0.0, -1.0, math.inf])
def test_a_saturation_that_cannot_work_is_refused_by_name(saturation: float) -> None:
    with pytest.raises(ValueError, match=f"saturation={saturation}"):
        Cero(saturation)

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.base import SingleRound
from e3rl.budgets.uniform import Uniform


def counts(rule: Uniform, ids: list[str], total: int, step: int = 0) -> list[int]:
    allocation = rule.decide(ids, total, step, epoch=0).allocation
    assert isinstance(allocation, SingleRound)
    return allocation.counts


@settings(deadline=None, max_examples=50)
@given(n=st.integers(1, 30), total=st.integers(1, 200), step=st.integers(0, 50))
def test_uniform_spends_the_total_and_differs_by_at_most_one(n: int, total: int, step: int) -> None:
    ids = [f"p{i}" for i in range(n)]
    given_out = counts(Uniform(), ids, total, step)
    assert sum(given_out) == total
    assert max(given_out) - min(given_out) <= 1


@settings(deadline=None, max_examples=50)
@given(order=st.permutations(range(7)), total=st.integers(7, 40))
def test_uniform_does_not_depend_on_the_order_of_the_prompts(order: list[int], total: int) -> None:
    ids = [f"p{i}" for i in range(7)]
    shuffled = [ids[i] for i in order]
    straight = dict(zip(ids, counts(Uniform(), ids, total), strict=True))
    assert dict(zip(shuffled, counts(Uniform(), shuffled, total), strict=True)) == straight


def test_remainder_moves_between_prompts_over_the_steps() -> None:
    ids = ["a", "b", "c", "d"]
    spent = np.sum([counts(Uniform(), ids, 5, step) for step in range(400)], axis=0)
    assert spent.sum() == 2000
    assert (np.abs(spent - 500) < 40).all()  # 4 standard deviations of a fair draw are 35


def test_remainder_depends_on_the_seed() -> None:
    ids = [f"p{i}" for i in range(20)]
    assert counts(Uniform(seed=1), ids, 50) != counts(Uniform(seed=2), ids, 50)


def test_uniform_has_no_ranks_and_reports_its_bounds() -> None:
    decision = Uniform().decide(["a", "b"], 5, 0, 0)
    assert np.isnan(decision.ranks).all()
    metrics = decision.allocation.metrics()
    assert (metrics["n_min"], metrics["n_max"], metrics["at_max"]) == (2, 3, 0.5)


def test_uniform_refuses_the_state_of_another_rule() -> None:
    Uniform().load_state_dict(Uniform().state_dict())
    with pytest.raises(ValueError, match=r"Uniform.*unknown keys \['ranks'\]"):
        Uniform().load_state_dict({"ranks": {}})

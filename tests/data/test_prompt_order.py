import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.data.prompt_order import PromptOrder


def test_without_hand_backs_passes_are_permutations_cut_to_whole_steps() -> None:
    order = PromptOrder(7, 3, seed=1)
    passes = [[order.take() for _ in range(2)] for _ in range(3)]
    shown = [[row for step in one for row in step] for one in passes]
    assert all(len(rows) == len(set(rows)) == 6 for rows in shown)
    assert len({tuple(rows) for rows in shown}) == 3
    whole = PromptOrder(7, 7, seed=1)
    assert [whole.take()[:6] for _ in range(3)] == shown


def test_rows_handed_back_come_first_and_the_others_move_back() -> None:
    plain = PromptOrder(9, 3, seed=2)
    a, b, c = (plain.take() for _ in range(3))
    order = PromptOrder(9, 3, seed=2)
    assert order.take() == a
    order.hand_back([a[0], a[2]])
    assert order.take() == [a[0], a[2], b[0]]
    order.hand_back([b[0]])
    assert order.take() == [b[0], b[1], b[2]]
    # The pass takes a step longer, and then the next one begins: no row is lost, none repeated.
    assert order.take() == c
    assert order.take() == plain.take()


def test_older_rows_wait_before_newer_ones_when_there_are_more_than_a_step_holds() -> None:
    order = PromptOrder(12, 3, seed=3)
    a, b = order.take(), order.take()
    order.hand_back(a)
    order.hand_back(b)
    assert order.take() == a
    order.hand_back(a[1:2])
    assert order.take() == b
    assert order.take()[0] == a[1]


def test_a_row_that_waits_when_the_next_pass_brings_it_comes_once() -> None:
    order = PromptOrder(4, 4, seed=4)
    first = order.take()
    order.hand_back(first[:3])
    second = order.take()
    assert second[:3] == first[:3]
    assert sorted(second) == [0, 1, 2, 3]


@settings(deadline=None, max_examples=100)
@given(
    n=st.integers(1, 12),
    per_step=st.integers(1, 12),
    kept=st.lists(st.integers(1, 12), min_size=1, max_size=30),
)
def test_every_row_is_used_once_before_the_next_pass_begins(
    n: int, per_step: int, kept: list[int]
) -> None:
    per_step = min(n, per_step)
    order = PromptOrder(n, per_step, seed=0)
    used: Counter[int] = Counter()
    in_a_pass = n - n % per_step
    for step in range(len(kept)):
        rows = order.peek()
        assert order.take() == rows
        assert len(set(rows)) == len(rows) == per_step
        used.update(rows[: kept[step]])
        order.hand_back(rows[kept[step] :])
        state = order.state_dict()
        assert len(state["waiting"]) <= per_step
        if state["taken"] <= in_a_pass:  # nothing of the second pass
            assert set(used.values()) == {1}
            assert used.total() + len(state["waiting"]) == state["taken"]


@settings(deadline=None, max_examples=50)
@given(kept=st.lists(st.integers(1, 4), min_size=2, max_size=20), cut=st.integers(0, 19))
def test_an_order_goes_on_from_its_state(kept: list[int], cut: int) -> None:
    whole, resumed = PromptOrder(10, 4, seed=5), PromptOrder(10, 4, seed=5)
    for step, n in enumerate(kept):
        if step == min(cut, len(kept) - 1):
            resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        rows = whole.take()
        if step >= cut:
            assert resumed.take() == rows
            resumed.hand_back(rows[n:])
        whole.hand_back(rows[n:])


def test_the_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"missing keys \['waiting'\]"):
        PromptOrder(4, 2, 0).load_state_dict({"taken": 1})

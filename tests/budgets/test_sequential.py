from typing import Any

import numpy as np
import pytest
from played_steps import play

from e3rl.budgets.sequential import Sequential


def test_prompts_leave_with_one_right_rollout_and_the_others_go_on() -> None:
    rates = {"right": 1.0, "wrong": 0.0, "too": 0.0}
    rule = Sequential("positive", per_round=4, max_rounds=3)
    board = play(rule, list(rates), rates, 24, 0, 0)
    # Of 24, 12 remain for two prompts: a full round of 8, then 4 shared evenly.
    assert board.rounds == [[4, 4, 4], [0, 4, 4], [0, 2, 2]]
    metrics = board.metrics
    assert (metrics["rounds"], metrics["cap"], metrics["spent_share"]) == (3, 24, 1)
    assert metrics["last_active"] == pytest.approx(2 / 3)
    assert metrics["first_accuracy"] == pytest.approx(1 / 3)
    assert metrics["unresolved"] == pytest.approx(2 / 3)


def test_no_prompt_gets_more_than_its_rounds_even_where_the_cap_allows() -> None:
    rates = {"right": 1.0, "wrong": 0.0}
    rule = Sequential("positive", per_round=2, max_rounds=3)
    board = play(rule, list(rates), rates, 40, 0, 0)
    assert board.rounds == [[2, 2], [0, 2], [0, 2]]
    assert board.metrics["spent_share"] == pytest.approx(8 / 40)


def test_balanced_wants_right_and_wrong_rollouts_of_every_prompt() -> None:
    rates = {"right": 1.0, "wrong": 0.0, "coin": 0.5}
    rule = Sequential("balanced", per_round=8, max_rounds=2, wanted=4)
    board = play(rule, list(rates), rates, 48, 3, 0)
    assert 2 <= sum(board.rewards[2]) <= 6  # the coin has two of both in its first eight
    assert board.rounds == [[8, 8, 8], [8, 8, 0]]


@pytest.mark.parametrize(
    ("wanted", "right", "wrong", "done"),
    [(4, 2, 2, True), (4, 1, 9, False), (4, 9, 1, False), (5, 2, 3, True), (5, 3, 2, False)],
)
def test_balanced_needs_the_lower_half_right_and_the_upper_half_wrong(
    wanted: int, right: int, wrong: int, done: bool
) -> None:
    rule = Sequential("balanced", wanted=wanted)
    found = rule.done(np.array([right + wrong]), np.array([float(right)]))
    assert found.tolist() == [done]


def test_a_cap_below_the_first_round_names_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"6 rollouts for 2 prompts.*per_round=4"):
        Sequential(per_round=4).decide(["a", "b"], 6, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exit_rule": "both"}, "exit_rule='both'"),
        ({"per_round": 1}, "per_round=1"),
        ({"max_rounds": 1}, "max_rounds=1"),
        ({"wanted": 1}, "wanted=1"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Sequential(**arguments)

from typing import Any

import numpy as np
import pytest
from played_steps import play

from e3rl.budgets.pilot_commit import PilotCommit


def test_pilots_of_all_prompts_then_the_rest_for_the_mixed_ones_in_equal_parts() -> None:
    rates = {"right": 1.0, "wrong": 0.0, "half": 0.5, "coin": 0.5}
    rule = PilotCommit(pilot=8, commit=24)
    board = play(rule, list(rates), rates, 50, 0, 0)
    assert board.rounds[0] == [8, 8, 8, 8]
    assert all(1 <= sum(rewards[:8]) <= 6 for rewards in board.rewards[2:])  # within [1/8, 3/4]
    assert board.rounds[1:] == [[0, 0, 9, 9]]  # 50 - 32 = 18 for two prompts
    metrics = board.metrics
    assert (metrics["rounds"], metrics["spent_share"], metrics["committed"]) == (2, 1, 0.5)


def test_a_prompt_gets_at_most_what_it_may_commit_and_the_rest_stays_unspent() -> None:
    rates = {"right": 1.0, "wrong": 0.0, "half": 0.5, "coin": 0.5}
    board = play(PilotCommit(pilot=8, commit=5), list(rates), rates, 64, 0, 0)
    assert board.rounds == [[8, 8, 8, 8], [0, 0, 5, 5]]
    assert board.metrics["spent_share"] == pytest.approx(42 / 64)


def test_without_a_mixed_prompt_the_pilots_are_the_step() -> None:
    rates = {"right": 1.0, "wrong": 0.0}
    board = play(PilotCommit(), list(rates), rates, 16, 0, 0)
    assert board.rounds == [[4, 4]]
    assert board.metrics["committed"] == 0


@pytest.mark.parametrize(
    ("right", "more"),
    [(0, False), (1, False), (2, True), (12, True), (13, False), (16, False)],
)
def test_published_shares_of_sixteen_pilots_are_an_eighth_and_three_quarters(
    right: int, more: bool
) -> None:
    found = PilotCommit(16, 48).commits(np.array([16]), np.array([float(right)]))
    assert found.tolist() == [more]


def test_a_total_below_the_pilots_names_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"6 rollouts for 2 prompts.*pilot=4"):
        PilotCommit().decide(["a", "b"], 6, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pilot": 1}, "pilot=1"),
        ({"commit": 0}, "commit=0"),
        ({"lowest": 0.8}, "lowest=0.8 and highest=0.75"),
        ({"highest": 1.5}, "highest=1.5"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PilotCommit(**arguments)

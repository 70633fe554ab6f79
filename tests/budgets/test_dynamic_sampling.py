from typing import Any

import pytest
from played_steps import play

from e3rl.budgets.dynamic_sampling import DynamicSampling

HALF = {f"coin{i}": 0.5 for i in range(4)} | {f"easy{i}": 1.0 for i in range(4)}


def test_whole_groups_are_sampled_until_enough_are_mixed() -> None:
    rule = DynamicSampling(wanted_share=0.25)
    board = play(rule, list(HALF), HALF, 64, 0, 0)
    sizes = [len(x) for x in board.rewards]
    mixed = [0 < sum(x) < len(x) for x in board.rewards]
    assert set(sizes) <= {0, 8}
    assert sum(mixed) == 2
    # The first round takes two candidates, every other one as many as are missing.
    reached = [sum(n > 0 for n in counts) for counts in board.rounds]
    assert reached[0] == 2
    assert sum(sizes) == 8 * sum(reached) < 64
    metrics = board.metrics
    assert metrics["reached"] == sum(reached) / 8
    assert metrics["kept"] == pytest.approx(2 / sum(reached))


def test_a_step_without_mixed_groups_ends_when_all_candidates_are_used() -> None:
    rates = dict.fromkeys(HALF, 1.0)
    rule = DynamicSampling(wanted_share=0.5, max_rounds=10)
    board = play(rule, list(rates), rates, 66, 0, 0)
    assert [len(x) for x in board.rewards] == [8] * 8
    assert (board.metrics["reached"], board.metrics["kept"]) == (1, 0)


def test_rounds_are_bounded() -> None:
    rates = dict.fromkeys(HALF, 0.0)
    rule = DynamicSampling(wanted_share=0.125, max_rounds=3)
    assert len(play(rule, list(rates), rates, 64, 0, 0).rounds) == 3


def test_the_order_of_the_candidates_changes_with_the_step() -> None:
    rule = DynamicSampling(wanted_share=0.5, max_rounds=1)
    first = [play(rule, list(HALF), HALF, 64, step, 0).rounds[0] for step in range(8)]
    assert len(set(map(tuple, first))) > 1


def test_candidates_that_were_not_reached_come_again_unless_told_otherwise() -> None:
    again = DynamicSampling().decide(list(HALF), 64, 0, 0)
    assert again.requeue
    assert not DynamicSampling(leftovers="next_pass").decide(list(HALF), 64, 0, 0).requeue


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wanted_share": 1.0}, "wanted_share=1.0"),
        ({"wanted_share": 0.0}, "wanted_share=0.0"),
        ({"max_rounds": 0}, "max_rounds=0"),
        ({"leftovers": "drop"}, "leftovers='drop'"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DynamicSampling(**arguments)

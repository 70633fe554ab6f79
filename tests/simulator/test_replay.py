from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from e3rl.budgets.base import Decision
from e3rl.budgets.dynamic_sampling import DynamicSampling
from e3rl.budgets.e3_rank import E3Rank
from e3rl.budgets.neyman import Neyman
from e3rl.budgets.sequential import Sequential
from e3rl.budgets.uniform import Uniform
from e3rl.simulator.replay import PassResult, SimulatedStep, Workload, replay
from e3rl.simulator.table import PassRateTable, generate_table

ENDS = PassRateTable([f"p{i}" for i in range(6)], np.array([0.0, 1.0, 0.0, 1.0, 0.0, 1.0]))


class Recorded(Uniform):
    """The uniform rule, with all it was asked and told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[str], int, int, int]] = []
        self.told: list[dict[str, list[float]]] = []

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        self.asked.append((list(prompt_ids), total, step, epoch))
        return super().decide(prompt_ids, total, step, epoch)

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[np.ndarray]) -> None:
        self.told.append({x: r.tolist() for x, r in zip(prompt_ids, rewards, strict=True)})


def test_a_rule_is_asked_and_told_as_in_training() -> None:
    rule = Recorded()
    passes = list(replay(rule, Workload(ENDS, 2, seed=1), rollouts_per_prompt=3, epochs=2))
    assert [asked[1:] for asked in rule.asked] == [
        (6, step, epoch) for step, epoch in enumerate([0, 0, 0, 1, 1, 1])
    ]
    for epoch in (0, 1):
        ids = [x for asked in rule.asked[3 * epoch : 3 * epoch + 3] for x in asked[0]]
        assert sorted(ids) == ENDS.prompt_ids
    assert rule.asked[0][0] != rule.asked[3][0]
    for told in rule.told:
        for prompt_id, rewards in told.items():
            assert rewards == [float(ENDS.rates[int(prompt_id[1:])])] * 3
    assert [found.rollouts.tolist() for found in passes] == [[3] * 6] * 2
    assert passes[0].right.tolist() == [0, 3, 0, 3, 0, 3]
    assert passes[0].cap == 18


def test_a_rule_that_needs_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Neyman weighs by gradient norms.*unit_norms=true"):
        next(replay(Neyman("gvm"), Workload(ENDS, 2), 4, epochs=1))
    assert next(replay(Neyman("gvm", unit_norms=True), Workload(ENDS, 2), 4, epochs=1)).cap == 24


def test_a_rule_that_needs_traits_is_refused() -> None:
    with pytest.raises(ValueError, match=r"E3Rank goes by the prompts' entropy.*difficulty=reward"):
        next(replay(E3Rank(difficulty="entropy"), Workload(ENDS, 2), 8, epochs=2))
    with pytest.raises(ValueError, match=r"Neyman goes by the prompts' length.*cost=rollouts"):
        next(replay(Neyman(cost="tokens"), Workload(ENDS, 2), 8, epochs=2))


def test_what_does_not_fill_a_step_is_left_out_of_a_pass() -> None:
    found = next(replay(Uniform(), Workload(ENDS, 4), 2, epochs=1))
    assert sorted(found.rollouts.tolist()) == [0, 0, 2, 2, 2, 2]
    assert found.cap == 8


def test_all_rules_see_the_same_prompts_in_the_same_steps() -> None:
    table = generate_table(64, seed=1)
    one, other = Recorded(), Recorded()
    workload = Workload(table, 8, seed=5)
    list(replay(one, workload, 4, epochs=2))
    list(replay(other, workload, 8, epochs=2))
    assert [x[0] for x in one.asked] == [x[0] for x in other.asked]


def test_rewards_are_drawn_at_the_pass_rates() -> None:
    table = PassRateTable([f"p{i}" for i in range(400)], np.full(400, 0.3))
    found = next(replay(Uniform(), Workload(table, 400), 100, epochs=1))
    assert found.right.sum() / found.rollouts.sum() == pytest.approx(0.3, abs=0.01)
    assert found.right.var() == pytest.approx(100 * 0.3 * 0.7, rel=0.25)


def test_rounds_see_what_earlier_rounds_earned() -> None:
    rule = Sequential("positive", per_round=2, max_rounds=3)
    found = next(replay(rule, Workload(ENDS, 6), 6, epochs=1))
    assert found.rollouts.tolist() == [6, 2, 6, 2, 6, 2]
    assert found.cap == 36


def test_numbers_of_one_round_are_fixed_and_those_of_several_follow_the_rewards() -> None:
    even, rounds = (
        next(replay(rule, Workload(ENDS, 6), 4, epochs=1))
        for rule in (Uniform(), Sequential("positive", per_round=2, max_rounds=2))
    )
    rates, rollouts, right = even.sampled_groups()
    assert (rates.tolist(), rollouts.tolist(), right) == (ENDS.rates.tolist(), [4] * 6, None)
    right = rounds.sampled_groups()[2]
    assert right is not None
    assert right.tolist() == [0, 2, 0, 2, 0, 2]


def test_prompts_that_are_handed_back_are_sampled_before_others_come_again() -> None:
    table = PassRateTable([f"p{i}" for i in range(20)], np.full(20, 0.5))

    def visits(leftovers: Any) -> np.ndarray:
        rule = DynamicSampling(wanted_share=0.25, max_rounds=1, leftovers=leftovers)
        return np.array([p.rollouts for p in replay(rule, Workload(table, 4), 8, epochs=3)]) // 8

    # 1 of 4 candidates in each of 5 steps: three epochs are less than a pass over 20 prompts.
    again, later = visits("requeue"), visits("next_pass")
    assert again.sum(axis=1).tolist() == later.sum(axis=1).tolist() == [5, 5, 5]
    assert again.sum(axis=0).max() == 1
    assert later.sum(axis=0).max() > 1


def test_first_solved_counts_prompts_sampled_in_vain_before() -> None:
    table = PassRateTable([f"p{i}" for i in range(200)], np.full(200, 0.05))
    first, second = replay(Uniform(), Workload(table, 200, seed=3), 8, epochs=2)
    assert first.first_solved == 0
    assert second.first_solved == int(((first.right == 0) & (second.right > 0)).sum()) > 0


def test_a_replay_is_repeatable() -> None:
    table = generate_table(64, seed=1)

    def run() -> list[PassResult]:
        return list(replay(E3Rank(), Workload(table, 16, seed=2), 8, epochs=3))

    for one, other in zip(run(), run(), strict=True):
        assert one.rollouts.tolist() == other.rollouts.tolist()
        assert one.right.tolist() == other.right.tolist()


def test_rewards_of_a_step_are_as_many_and_as_right_as_counted() -> None:
    step = SimulatedStep(np.array([0.5, 1.0, 0.5]), np.random.default_rng(0))
    step.add(np.array([4, 2, 0]))
    step.add(np.array([3, 0, 0]))
    rewards = step.rewards()
    assert [len(x) for x in rewards] == step.tally()[0].tolist() == [7, 2, 0]
    assert [sum(x) for x in rewards] == step.tally()[1].tolist()


@pytest.mark.parametrize("size", [0, 7])
def test_a_step_larger_than_the_table_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"prompts_per_step={size} for a table of 6"):
        Workload(ENDS, size)

"""Budget rules on drawn tables of pass rates."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from e3rl.budgets.base import Decision, SingleRound
from e3rl.budgets.pilot_commit import PilotCommit
from e3rl.budgets.uniform import Uniform
from e3rl.readiness.rule_ranking import (
    ComparisonSettings,
    DrawRates,
    ReplayScores,
    RuleScore,
    rank_rules,
    replay_rules,
)

SETTING = ComparisonSettings(
    "grpo", prompts=32, prompts_per_step=8, rollouts_per_prompt=8, epochs=2, tables=4
)


def draw_around(mean: float) -> DrawRates:
    return lambda size, generator: generator.beta(20 * mean, 20 * (1 - mean), size)


class WhereItWasSolved(Uniform):
    """Two rollouts where none was right before, and all others where one was."""

    def __init__(self) -> None:
        super().__init__()
        self.solved: set[str] = set()

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        known = np.array([name in self.solved for name in prompt_ids])
        if not known.any():
            return super().decide(prompt_ids, total, step, epoch)
        rest = total - 2 * known.size
        counts = np.full(known.size, 2)
        counts[np.flatnonzero(known)] += rest // known.sum()
        counts[np.flatnonzero(known)[: rest % known.sum()]] += 1
        return Decision(SingleRound(counts), np.full(known.size, np.nan))

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        self.solved |= {name for name, r in zip(prompt_ids, rewards, strict=True) if r.sum()}


def test_rules_stand_in_the_order_of_their_median_noise() -> None:
    noises = np.array([[2.0, 1.0], [4.0, 3.0], [6.0, 3.0]])
    reached = np.array([[1.0, 0.5], [1.0, 0.6], [1.0, 0.4]])
    assert rank_rules(["a", "b"], ReplayScores(noises, reached), "a") == [
        RuleScore("b", 3.0, 0.5, *map(pytest.approx, (0.5, 0.5 + 0.95 * 0.25, 0.5))),
        RuleScore("a", 4.0, 1.0, 1.0, 1.0, 1.0),
    ]


def test_tables_without_a_signal_do_not_count() -> None:
    played = ReplayScores(np.array([[2.0, 1.0], [np.nan, 3.0]]), np.ones((2, 2)))
    assert [(w.rule, w.noise) for w in rank_rules(["a", "b"], played, "a")] == [
        ("b", 1.0),
        ("a", 2.0),
    ]
    assert rank_rules(["a", "b"], ReplayScores(played.noise[1:], played.reached[1:]), "a") == []


def test_rules_play_on_the_same_tables_and_the_same_again() -> None:
    rules = {"one": Uniform, "same": Uniform, "other": WhereItWasSolved}
    noises, reached = replay_rules(rules, draw_around(0.3), SETTING)
    assert noises.shape == (4, 3)
    assert (reached == 1).all()
    assert np.array_equal(noises[:, 0], noises[:, 1])
    assert len(set(noises[:, 0].tolist())) == 4
    assert np.array_equal(noises, replay_rules(rules, draw_around(0.3), SETTING).noise)


def test_even_groups_are_as_noisy_as_worked_by_hand() -> None:
    # All pass rates 1/2, groups of 2: half of the groups are mixed, with Σ A² = n - 1 = 1 and
    # E[√(c(n - c)(n - 1)/n)] = √(1/2)/2; N·variance/signal² = N·(P/2)/N² / (P·√(1/2)/2/N)².
    pairs = ComparisonSettings("grpo", 8, 8, rollouts_per_prompt=2, epochs=1, tables=1)
    n, p = 16, 8
    by_hand = n * (p / 2 / n**2) / (p * np.sqrt(0.5) / 2 / n) ** 2
    played = replay_rules({"uniform": Uniform}, lambda size, _: np.full(size, 0.5), pairs)
    assert played.noise[0, 0] == pytest.approx(by_hand)


def test_a_rule_that_follows_pass_rates_beats_even_groups_where_they_differ_most() -> None:
    # Half of the prompts are never solved: the others get some 14 rollouts and not 8, and noise
    # goes with N/(n - 1): about 7/13 of it is left.
    rules = {"even": Uniform, "following": WhereItWasSolved}
    played = replay_rules(rules, lambda size, _: np.repeat([0.0, 0.5], size // 2), SETTING)
    best, other = rank_rules(["even", "following"], played, "even")
    assert (best.rule, other.rule) == ("following", "even")
    assert best.ratio == pytest.approx(7 / 13, abs=0.12)


def test_a_rule_in_rounds_is_as_noisy_as_the_rewards_that_it_went_by() -> None:
    # Rates of .8, two pilots, and a third rollout for the mixed .32: all groups of 3 are mixed,
    # with Σ A² w² = 1/6/P² and Σ w·A·r = 1/3/P; N = 2.32·P. Were the counts fixed, 12.18.
    many = ComparisonSettings("rloo_by_prompt", 4096, 4096, 3, epochs=1, tables=1)
    rules = {"pilots": lambda: PilotCommit(pilot=2, commit=1)}
    played = replay_rules(rules, lambda size, _: np.full(size, 0.8), many)
    assert played.noise[0, 0] == pytest.approx(2.32 * (0.32 / 6) / (0.32 / 3) ** 2, rel=0.06)

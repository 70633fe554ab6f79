import math

import numpy as np
import pytest

from e3rl.budgets.history import RewardHistory


def test_mean_is_cumulative_over_visits_of_unequal_size() -> None:
    history = RewardHistory()
    history.observe(["a", "b"], [np.array([1.0, 0.0]), np.array([0.0, 0.0])])
    history.observe(["a"], [np.array([1.0, 1.0, 1.0, 1.0])])
    assert history.means() == {"a": 5 / 6, "b": 0.0}


def test_decay_weighs_old_visits_less() -> None:
    history = RewardHistory(decay=0.5)
    history.observe(["a"], [np.array([1.0, 1.0])])
    history.observe(["a"], [np.array([0.0, 0.0])])
    assert history.means() == {"a": 1 / 3}  # (0.5·2 + 0) / (0.5·2 + 2)


def test_never_solved_excludes_solved_and_unseen_prompts() -> None:
    history = RewardHistory(decay=0.5)
    for rewards in ([0.0, 1.0], [0.0, 0.0]):
        history.observe(["hard", "once"], [np.zeros(2), np.array(rewards)])
    assert history.never_solved(["hard", "once", "new"]).tolist() == [True, False, False]


def test_prompt_without_rollouts_stays_unseen() -> None:
    history = RewardHistory()
    history.observe(["a", "b"], [np.array([]), np.array([1.0])])
    assert len(history) == 1


@pytest.mark.parametrize("bad", [-0.5, 1.5, math.nan])
def test_shaped_or_missing_rewards_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"prompt a.*raw 0/1"):
        RewardHistory().observe(["a"], [np.array([1.0, bad])])


def test_ids_and_rewards_must_pair_up() -> None:
    with pytest.raises(ValueError, match="zip"):
        RewardHistory().observe(["a", "b"], [np.array([1.0])])


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5])
def test_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay={decay}"):
        RewardHistory(decay)

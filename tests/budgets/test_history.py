import math

import numpy as np
import pytest

from e3rl.budgets.history import CountedRewards, RewardHistory, reward_sums
from e3rl.budgets.keys import SharedIds, prompt_keys
from e3rl.statistics.ranks import mid_ranks


def test_mean_is_cumulative_over_visits_of_unequal_size() -> None:
    history = RewardHistory()
    history.observe(["a", "b"], [np.array([1.0, 0.0]), np.array([0.0, 0.0])])
    history.observe(["a"], [np.array([1.0, 1.0, 1.0, 1.0])])
    assert history.means() == {"a": 5 / 6, "b": 0.0}


def test_of_a_prompt_that_is_new_what_the_mean_prompt_has_is_expected() -> None:
    """Prompts count alike, however many rollouts they had: (1 + 0)/2, not 1/4."""
    history = RewardHistory()
    assert history.expected(["new"]).tolist() == [1.0]
    history.observe(["a", "b"], [np.ones(1), np.zeros(3)])
    assert history.expected(["new", "b", "a"]).tolist() == [0.5, 0.0, 1.0]


def test_decay_weighs_old_visits_less() -> None:
    history = RewardHistory(decay=0.5)
    history.observe(["a"], [np.array([1.0, 1.0])])
    history.observe(["a"], [np.array([0.0, 0.0])])
    assert history.means() == {"a": 1 / 3}  # (0.5·2 + 0) / (0.5·2 + 2)


@pytest.mark.parametrize("decay", [1.0, 0.9, 0.7])
def test_prompts_of_one_mean_have_one_rank_however_they_came_to_it(decay: float) -> None:
    """A third right at every visit, of 3 to 12 rollouts: sums discounted differ in a last digit."""
    history, ids = RewardHistory(decay), [f"p{i}" for i in range(40)]
    for visit in range(4):
        sizes = [3 * (1 + (i * (visit + 1)) % 4) for i in range(40)]
        history.observe(ids, [np.arange(n) < n // 3 for n in sizes])
    assert set(history.ranks(history.of(ids))) == {39 / 2 / 40}


def test_never_solved_excludes_solved_and_unseen_prompts() -> None:
    history = RewardHistory(decay=0.5)
    for rewards in ([0.0, 1.0], [0.0, 0.0]):
        history.observe(["hard", "once"], [np.zeros(2), np.array(rewards)])
    assert history.of(["hard", "once", "new"]).never_solved.tolist() == [True, False, False]


def test_prompt_without_rollouts_stays_unseen() -> None:
    history = RewardHistory()
    history.observe(["a", "b"], [np.array([]), np.array([1.0])])
    assert len(history) == 1


@pytest.mark.parametrize("bad", [-0.5, 1.5, math.nan])
def test_shaped_or_missing_rewards_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=r"prompt a.*raw 0/1"):
        RewardHistory().observe(["a"], [np.array([1.0, bad])])


def test_ids_and_rewards_must_pair_up() -> None:
    with pytest.raises(ValueError, match="2 prompts with 1 arrays"):
        RewardHistory().observe(["a", "b"], [np.array([1.0])])


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5])
def test_decay_outside_its_range_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=f"decay={decay}"):
        RewardHistory(decay)


def test_a_prompt_that_occurs_twice_is_visited_twice() -> None:
    one, other = RewardHistory(decay=0.5), RewardHistory(decay=0.5)
    visits = [np.array([1.0, 1.0]), np.array([0.0]), np.array([1.0, 0.0])]
    one.observe(["a", "b", "a"], visits)
    for prompt_id, rewards in zip(["a", "b", "a"], visits, strict=True):
        other.observe([prompt_id], [rewards])
    assert one.state_dict() == other.state_dict()
    assert one.means() == {"a": 2 / 3, "b": 0.0}  # (0.5·2 + 1) / (0.5·2 + 2)


def test_counts_of_prompts_never_seen_are_zero() -> None:
    history = RewardHistory()
    assert history.of(["new"]).rollouts.tolist() == [0]
    history.observe(["a", "b"], [np.ones(3), np.zeros(2)])
    assert history.of(["new", "b", "a"]).rollouts.tolist() == [0, 2, 3]
    assert history.of(["new", "b", "a"]).rewards.tolist() == [0, 0, 3]


def test_ranks_are_mid_ranks_among_all_prompts_seen() -> None:
    history = RewardHistory()
    assert np.isnan(history.ranks(history.of(["new"]))).all()
    rates = {"a": 1.0, "b": 0.5, "c": 0.5, "d": 0.0, "e": 0.25}
    for prompt_id, rate in rates.items():
        history.observe([prompt_id], [np.repeat([1.0, 0.0], [int(4 * rate), int(4 - 4 * rate)])])
    every = dict(zip(rates, mid_ranks(list(rates.values())).tolist(), strict=True))
    found = history.ranks(history.of(["e", "new", "b", "d"]))
    assert found[[0, 2, 3]].tolist() == [every["e"], every["b"], every["d"]]
    assert np.isnan(found[1])


def test_the_posterior_is_the_recursion_with_a_discounted_prior() -> None:
    history, a, b, decay = RewardHistory(decay=0.5), 1.0, 2.0, 0.5
    for right, n in [(3, 8), (0, 4), (5, 6)]:
        history.observe(["x"], [np.repeat([1.0, 0.0], [right, n - right])])
        a = decay * a + (1 - decay) * 1.0 + right
        b = decay * b + (1 - decay) * 2.0 + n - right
    found = history.of(["x", "new"]).posterior((1.0, 2.0))
    assert found.a.tolist() == pytest.approx([a, 1])
    assert found.b.tolist() == pytest.approx([b, 2])


def test_a_restored_history_goes_on_as_if_never_stopped() -> None:
    history = RewardHistory(decay=0.7)
    history.observe(["b", "a"], [np.ones(3), np.zeros(2)])
    restored = RewardHistory(decay=0.7)
    restored.load_state_dict(history.state_dict())
    for each in (history, restored):
        each.observe(["c", "a"], [np.ones(1), np.ones(1)])
    assert restored.state_dict() == history.state_dict()
    assert list(restored.means()) == ["b", "a", "c"]


def test_an_empty_history_has_an_empty_state() -> None:
    restored = RewardHistory()
    restored.load_state_dict(RewardHistory().state_dict())
    assert restored.state_dict() == {"rewards": {}, "rollouts": {}}
    assert restored.means() == {}


def test_rewards_known_by_their_counts_are_those_of_arrays() -> None:
    rewards = CountedRewards(np.array([2.0, 0.0, 0.0]), np.array([3, 0, 2]))
    arrays = [np.array([1.0, 1.0, 0.0]), np.array([]), np.zeros(2)]
    assert [x.tolist() for x in rewards] == [x.tolist() for x in arrays]
    assert [x.tolist() for x in rewards[1:]] == [[], [0, 0]]
    ids = ["a", "b", "c"]
    counted, summed = reward_sums(ids, rewards), reward_sums(ids, arrays)
    assert counted.rewards.tolist() == summed.rewards.tolist()
    assert counted.rollouts.tolist() == summed.rollouts.tolist()
    with pytest.raises(ValueError, match="2 prompts with 3 arrays"):
        reward_sums(ids[:2], rewards)


@pytest.mark.parametrize("right", [[3.0, 0.0], [-1.0, 0.0], [1.0]])
def test_more_right_rollouts_than_there_are_are_refused(right: list[float]) -> None:
    with pytest.raises(ValueError, match=r"of rollouts=\[2, 2\]"):
        CountedRewards(np.array(right), np.array([2, 2]))


def test_shared_ids_have_the_keys_of_their_step() -> None:
    ids = ["a", "b", "c"]
    shared = SharedIds(ids)
    for seed, step in [(1, 0), (1, 5), (2, 5), (1, 0)]:
        assert prompt_keys(seed, step, shared).tolist() == prompt_keys(seed, step, ids).tolist()
    assert prompt_keys(1, 0, shared) is prompt_keys(1, 0, shared)

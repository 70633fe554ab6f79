import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.advantages.base import Scheduled
from e3rl.advantages.grpo import GroupNormalized
from e3rl.advantages.pass_at_k import PassAtKAdvantage


def one_group(estimator, rewards):
    return estimator(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.int64), 1)


@pytest.mark.parametrize(
    ("right", "positive", "negative"),
    [(1, 1.0, -0.1429), (2, 0.522, -0.174), (4, 0.120, -0.120), (5, 0, 0), (8, 0, 0), (0, 0, 0)],
)
def test_eight_rollouts_and_k_4_have_their_golden_values(right, positive, negative):
    advantages = one_group(PassAtKAdvantage(k=4), [1.0] * right + [0.0] * (8 - right))
    expected = torch.tensor([positive] * right + [negative] * (8 - right), dtype=torch.float32)
    torch.testing.assert_close(advantages, expected, atol=5e-4, rtol=0)


def by_subsets(rewards: list[float], k: int) -> list[float]:
    """From the definition: every k-subset is a rollout of its own, normalised over subsets."""
    subsets = list(itertools.combinations(range(len(rewards)), k))
    earned = torch.tensor([max(rewards[i] for i in s) for s in subsets], dtype=torch.float64)
    spread = earned.std(correction=0)
    if spread == 0:
        return [0.0] * len(rewards)
    own = ((earned - earned.mean()) / spread).tolist()
    members = [
        [a for a, s in zip(own, subsets, strict=True) if j in s] for j in range(len(rewards))
    ]
    return [sum(of) / len(of) for of in members]


@given(st.lists(st.sampled_from([0.0, 1.0, 0.25, -0.5]), min_size=2, max_size=7), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_it_is_the_mean_over_the_subsets_a_rollout_is_in(rewards, k):
    wanted = by_subsets(rewards, min(k, len(rewards) - 1))
    found = one_group(PassAtKAdvantage(k=k), rewards)
    assert found.tolist() == pytest.approx(wanted, abs=1e-6)
    assert abs(float(found.sum())) < 1e-5


def test_every_group_has_the_k_that_its_size_allows():
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0])
    group = torch.tensor([0, 0, 0, 0, 0, 3, 1, 1, 4])
    advantages = PassAtKAdvantage(k=3)(rewards, group, 5).tolist()
    assert advantages[:5] == pytest.approx(by_subsets([1.0, 0, 0, 0, 0], 3))
    assert advantages[6:8] == pytest.approx(by_subsets([1.0, 0], 1))
    assert advantages[5] == advantages[8] == 0  # groups of one


def test_k_of_1_is_grpo_with_the_population_deviation():
    rewards = torch.tensor([1.0, 0, 0, 1, 0, 1, 1, 1])
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
    grpo = GroupNormalized(ddof=0, eps=0.0)(rewards, group, 3)
    torch.testing.assert_close(PassAtKAdvantage(k=1)(rewards, group, 3), grpo)


def test_rewards_between_0_and_1_train_for_the_largest_of_k():
    # The pairs of [.9, .5, 0] earn .9, .9 and .5: mean 23/30, deviation √(8/225).
    found = one_group(PassAtKAdvantage(k=2), [0.5, 0.9, 0.0])
    spread = (8 / 225) ** 0.5
    wanted = [(0.7 - 23 / 30) / spread, (0.9 - 23 / 30) / spread, (0.7 - 23 / 30) / spread]
    assert found.tolist() == pytest.approx(wanted)


def test_k_falls_linearly_to_its_final_value_at_the_last_step():
    estimator = PassAtKAdvantage(k=8, final_k=1)
    assert isinstance(estimator, Scheduled)
    seen = []
    for step in range(8):
        estimator.begin(step, 8)
        seen.append(estimator.metrics()["k"])
    assert seen == [8, 7, 6, 5, 4, 3, 2, 1]
    torch.testing.assert_close(
        one_group(estimator, [1.0, 0, 0, 0]), one_group(PassAtKAdvantage(k=1), [1.0, 0, 0, 0])
    )


def test_without_a_final_k_it_stays():
    estimator = PassAtKAdvantage(k=3)
    estimator.begin(9, 10)
    assert estimator.metrics() == {"k": 3.0}


@pytest.mark.parametrize("bad", [{"k": 0}, {"final_k": 0}])
def test_senseless_k_is_refused(bad):
    with pytest.raises(ValueError, match=r"k=0 must be at least 1"):
        PassAtKAdvantage(**bad)


def test_rewards_that_differ_by_rounding_are_equal():
    rewards = torch.tensor([0.3, 0.3, 0.3, 0.3 + 3e-8])
    assert rewards[3] > rewards[0]
    found = PassAtKAdvantage(k=2)(rewards, torch.zeros(4, dtype=torch.int64), 1)
    assert found.tolist() == [0.0] * 4

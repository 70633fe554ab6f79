import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.advantages.centred import Centred
from e3rl.advantages.grpo import GroupNormalized
from e3rl.advantages.leave_one_out import LeaveOneOut
from e3rl.advantages.maximum_likelihood import MaximumLikelihood

ESTIMATORS = [
    *(GroupNormalized(), GroupNormalized(ddof=0), Centred(), LeaveOneOut(), MaximumLikelihood()),
]
every = pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)


def one_group(estimator, rewards):
    return estimator(torch.tensor(rewards), torch.zeros(len(rewards), dtype=torch.int64), 1)


@pytest.mark.parametrize(
    ("right", "positive", "negative"),
    [(1, 2.4749, -0.3536), (2, 1.6202, -0.5401), (4, 0.9354, -0.9354)],
)
def test_grpo_of_eight_rollouts_has_its_golden_values(right, positive, negative):
    advantages = one_group(GroupNormalized(), [1.0] * right + [0.0] * (8 - right))
    expected = torch.tensor([positive] * right + [negative] * (8 - right))
    torch.testing.assert_close(advantages, expected, atol=5e-5, rtol=0)


def test_population_deviation_gives_the_square_root_of_the_odds():
    advantages = one_group(GroupNormalized(ddof=0, eps=0.0), [1.0, 0.0, 0.0, 0.0])
    torch.testing.assert_close(advantages, torch.tensor([3**0.5, *[-(3**-0.5)] * 3]))


def test_centred_subtracts_the_mean_of_each_group():
    rewards, group = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0]), torch.tensor([1, 0, 0, 1, 1])
    expected = torch.tensor([2 / 3, -0.5, 0.5, -1 / 3, -1 / 3])
    torch.testing.assert_close(Centred()(rewards, group, 2), expected)


def test_leave_one_out_subtracts_the_mean_of_the_others():
    rewards, group = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0]), torch.tensor([0, 0, 0, 2, 2])
    # Others' means: 1/4, 3/4, 1/2 | 0, 1.
    expected = torch.tensor([0.75, -0.75, 0.0, 1.0, -1.0])
    torch.testing.assert_close(LeaveOneOut()(rewards, group, 3), expected)


def test_maximum_likelihood_divides_by_the_mean_of_each_group():
    rewards, group = torch.tensor([1.0, 0.0, 0.0, 0.5, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 1, 2])
    # Means: 1/3, 1/4, 0.
    expected = torch.tensor([2.0, -1.0, -1.0, 1.0, -1.0, 0.0])
    torch.testing.assert_close(MaximumLikelihood()(rewards, group, 3), expected)


@pytest.mark.parametrize("n", [2, 3, 6])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_maximum_likelihood_follows_the_sum_of_pass_at_k_over_k(n, p):
    """Over all outcomes of n rollouts that are right with chance p: the mean of A times the slope
    of the log-prob in p is d/dp Σ pass@k / k = Σ (1-p)^(k-1) over k < n."""
    outcomes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * n).reshape(-1, n)
    group = torch.arange(len(outcomes)).repeat_interleave(n)
    advantages = MaximumLikelihood()(outcomes.flatten(), group, len(outcomes)).view(-1, n)
    chance = torch.where(outcomes == 1, p, 1 - p).prod(dim=1)
    score = torch.where(outcomes == 1, 1 / p, -1 / (1 - p))  # d log-prob / dp
    gradient = float((chance * (advantages * score).mean(dim=1)).sum())
    assert gradient == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, n)), rel=1e-5)


def test_maximum_likelihood_of_negative_rewards_is_refused():
    with pytest.raises(ValueError, match=r"a reward is -0\.5: use rewards of 0 and more"):
        one_group(MaximumLikelihood(), [1.0, -0.5])


@every
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.7])
def test_constant_groups_are_exactly_zero_despite_float_noise(estimator, value):
    rewards = torch.full((12,), value)
    rewards[3] += 5e-7 * value
    assert torch.equal(one_group(estimator, rewards.tolist()), torch.zeros(12))


@every
def test_singletons_and_empty_groups_are_exactly_zero(estimator):
    rewards, group = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([3, 1, 1])
    advantages = estimator(rewards, group, 5)
    assert advantages[0] == 0.0
    assert (advantages[1:] != 0).all()
    assert advantages.dtype == torch.float32


@every
def test_no_rollouts_give_no_advantages(estimator):
    empty = estimator(torch.zeros(0), torch.zeros(0, dtype=torch.int64), 3)
    assert empty.shape == (0,)


rollouts = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, 0.1, 0.7, 1 / 3])),
    min_size=1,
    max_size=24,
)


@pytest.mark.end_to_end
@every
@given(rollouts, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=50)
def test_permuting_the_rollouts_permutes_the_advantages(estimator, pairs, random):
    group = torch.tensor([g for g, _ in pairs])
    rewards = torch.tensor([r for _, r in pairs])
    order = torch.tensor(random.sample(range(len(pairs)), len(pairs)))
    advantages = estimator(rewards, group, 5)
    shuffled = estimator(rewards[order], group[order], 5)
    torch.testing.assert_close(shuffled, advantages[order], atol=1e-7, rtol=1e-6)
    assert torch.equal(shuffled == 0, advantages[order] == 0)


@every
@given(rollouts)
@settings(deadline=None, max_examples=50)
def test_advantages_of_every_group_sum_to_zero_and_keep_the_order_of_rewards(estimator, pairs):
    group = torch.tensor([g for g, _ in pairs])
    rewards = torch.tensor([r for _, r in pairs])
    advantages = estimator(rewards, group, 5)
    for g in range(5):
        own, earned = advantages[group == g], rewards[group == g]
        assert abs(float(own.sum())) < 1e-5
        if len(own) > 1:
            assert float(own[earned.argmax()]) == float(own.max())


@pytest.mark.end_to_end
@every
@given(rollouts)
@settings(deadline=None, max_examples=50)
def test_a_group_does_not_see_the_others(estimator, pairs):
    group = torch.tensor([g for g, _ in pairs])
    rewards = torch.tensor([r for _, r in pairs])
    advantages = estimator(rewards, group, 5)
    first = group == pairs[0][0]
    alone = one_group(estimator, rewards[first].tolist())
    torch.testing.assert_close(advantages[first], alone, atol=1e-7, rtol=1e-6)


def test_the_own_reward_shrinks_centred_but_not_leave_one_out():
    # E[A·1(right)] over all outcomes of n fair rollouts: p(1-p) without bias, (n-1)/n of it with.
    for n in (2, 4):
        outcomes = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * n)
        group = torch.arange(len(outcomes)).repeat_interleave(n)
        rewards = outcomes.flatten()
        means = [
            float((estimator(rewards, group, len(outcomes)) * rewards).mean())
            for estimator in (LeaveOneOut(), Centred())
        ]
        assert means == pytest.approx([0.25, 0.25 * (n - 1) / n])


@every
def test_senseless_inputs_are_refused(estimator):
    rows = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="rewards must be finite"):
        estimator(torch.tensor([0.0, float("nan")]), rows, 2)
    with pytest.raises(ValueError, match=r"lie in \[0, 1\), got 0 to 1"):
        estimator(torch.tensor([0.0, 1.0]), rows, 1)
    with pytest.raises(ValueError, match="must both be"):
        estimator(torch.tensor([0.0, 1.0, 1.0]), rows, 2)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [({"ddof": 2}, "ddof=2"), ({"eps": -1.0}, "eps=-1"), ({"eps": float("nan")}, "eps=nan")],
)
def test_senseless_settings_are_refused(settings_, message):
    with pytest.raises(ValueError, match=message):
        GroupNormalized(**settings_)

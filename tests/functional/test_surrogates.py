import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.surrogates import Surrogate, SurrogateInput, cispo, clipped, gspo


def inputs(log_ratios, advantages):
    log_ratios = torch.as_tensor(log_ratios)
    return SurrogateInput(
        log_ratios=log_ratios,
        logprobs=log_ratios.detach() - 1,
        advantages=torch.as_tensor(advantages, dtype=log_ratios.dtype),
        rollout=torch.zeros(len(log_ratios), dtype=torch.int64),
    )


def of_ratios(ratios, advantages, **bounds) -> Surrogate:
    return clipped(inputs(torch.tensor(ratios).log(), advantages), **bounds)


def test_right_tokens_are_bounded_above_only():
    result = of_ratios([0.5, 1.0, 1.2, 1.5], [2.0] * 4)
    torch.testing.assert_close(result.loss, torch.tensor([-1.0, -2.0, -2.4, -2.4]))
    assert result.clipped.tolist()[0] is False
    assert result.clipped.tolist()[3] is True


def test_wrong_tokens_are_bounded_below_and_by_the_dual_clip():
    result = of_ratios([0.5, 0.9, 1.0, 2.0, 5.0], [-1.0] * 5)
    torch.testing.assert_close(result.loss, torch.tensor([0.8, 0.9, 1.0, 2.0, 3.0]))
    assert result.clipped.tolist() == [True, False, False, False, True]


def test_without_the_dual_clip_wrong_tokens_have_no_upper_bound():
    result = of_ratios([5.0, 50.0], [-1.0, -1.0], dual_clip=None)
    torch.testing.assert_close(result.loss, torch.tensor([5.0, 50.0]))
    assert not result.clipped.any()


def test_the_upper_bound_moves_alone():
    result = of_ratios([1.25, 1.5, 0.7], [1.0, 1.0, -1.0], clip_high=0.28)
    torch.testing.assert_close(result.loss, torch.tensor([-1.25, -1.28, 0.8]))


ratio = st.floats(-3, 3)
advantage = st.floats(-3, 3)


@given(ratio, advantage, st.floats(0, 0.9), st.floats(0, 0.9), st.floats(1.01, 10))
@settings(deadline=None, max_examples=60)
def test_it_equals_the_published_minimum(log_ratio, a, low, high, c):
    rho = math.exp(log_ratio)
    expected = -min(rho * a, min(max(rho, 1 - low), 1 + high) * a)
    if a < 0:
        expected = min(expected, -c * a)
    result = clipped(
        inputs(torch.tensor([log_ratio], dtype=torch.float64), [a]),
        clip_low=low,
        clip_high=high,
        dual_clip=c,
    )
    # The bounds are float32 numbers.
    assert result.loss.item() == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_on_policy_the_gradient_is_minus_the_advantage():
    log_ratios = torch.zeros(3, requires_grad=True)
    result = clipped(inputs(log_ratios, [1.5, -2.0, 0.0]))
    result.loss.sum().backward()
    torch.testing.assert_close(log_ratios.grad, torch.tensor([-1.5, 2.0, 0.0]))
    assert not result.clipped.any()


def test_the_gradient_vanishes_exactly_where_a_token_counts_as_clipped():
    log_ratios = torch.linspace(-2, 2, 41).repeat(3).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 0.0]).repeat_interleave(41)
    result = clipped(inputs(log_ratios, advantages))
    result.loss.sum().backward()
    silent = (log_ratios.grad == 0) & (advantages != 0)
    assert torch.equal(silent, result.clipped)
    assert 0 < int(silent.sum()) < 82


def test_a_huge_log_ratio_stays_finite():
    result = clipped(inputs(torch.tensor([500.0, -500.0]), [1.0, -1.0]), dual_clip=None)
    torch.testing.assert_close(result.loss, torch.tensor([-1.2, 0.8]))
    unbounded = clipped(inputs(torch.tensor([500.0]), [-1.0]), dual_clip=None)
    assert unbounded.loss.item() == pytest.approx(math.exp(20), rel=1e-5)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ({"clip_low": -0.1}, "clip_low=-0.1"),
        ({"clip_low": 1.5}, "clip_low=1.5"),
        ({"clip_high": -1.0}, "clip_high=-1.0"),
        ({"clip_high": float("nan")}, "clip_high=nan"),
        ({"dual_clip": 1.0}, "dual_clip=1.0"),
        ({"dual_clip": float("nan")}, "dual_clip=nan"),
    ],
)
def test_bounds_out_of_range_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        of_ratios([1.0], [1.0], **bounds)


def test_fields_of_different_length_are_refused():
    with pytest.raises(ValueError, match="advantages"):
        SurrogateInput(torch.zeros(2), torch.zeros(2), torch.zeros(3), torch.zeros(2))


# -- one ratio per rollout (GSPO)

# Rollouts of the tokens 0 and 2, and of 1, 3 and 4; mean log-ratios 0.1 and -0.2.
LOGS = [0.3, -0.5, -0.1, -0.2, 0.1]
ROLLOUT = torch.tensor([0, 1, 0, 1, 1])


def of_rollouts(log_ratios, advantages) -> SurrogateInput:
    return SurrogateInput(log_ratios, log_ratios.detach() - 1, torch.tensor(advantages), ROLLOUT)


def test_gspo_gives_every_token_the_geometric_mean_of_its_rollouts_ratios():
    s = of_rollouts(torch.tensor(LOGS), [1.0, -2.0, 1.0, -2.0, -2.0])
    result = gspo(s, clip_low=0.3, clip_high=0.3)
    first, second = math.exp(0.1), math.exp(-0.2)
    wanted = torch.tensor([-first, 2 * second, -first, 2 * second, 2 * second])
    torch.testing.assert_close(result.loss, wanted)
    assert not result.clipped.any()


def test_gspo_tells_above_from_below_by_the_ratio_of_the_rollout():
    result = gspo(
        of_rollouts(torch.tensor(LOGS), [1.0, -1.0, 1.0, -1.0, -1.0]), clip_low=0.05, clip_high=0.05
    )
    assert result.clipped.tolist() == [True] * 5
    assert result.above.tolist() == [True, False, True, False, False]  # 1.105 and 0.819


def test_gspo_clips_whole_rollouts():
    log_ratios = torch.tensor(LOGS, requires_grad=True)
    inputs = of_rollouts(log_ratios, [1.0, 1.0, 1.0, 1.0, 1.0])
    result = gspo(inputs, clip_low=0.05, clip_high=0.05)
    result.loss.sum().backward()
    assert result.clipped.tolist() == [True, False, True, False, False]  # 1.105 > 1.05; A > 0
    assert result.loss[0].item() == pytest.approx(-1.05)
    second = math.exp(-0.2)  # below the range, but the minimum keeps it for A > 0
    assert log_ratios.grad.tolist() == pytest.approx([0, -second, 0, -second, -second])


def test_gspo_has_no_dual_clip():
    """Wrong rollouts of which the ratio is 20 cost 20; with a dual clip it would be 3."""
    logs = torch.full((5,), math.log(20))
    result = gspo(of_rollouts(logs, [-1.0, -2.0, -1.0, -2.0, -2.0]))
    torch.testing.assert_close(result.loss, torch.tensor([20.0, 40.0, 20.0, 40.0, 40.0]))
    assert not result.clipped.any()


def test_gspos_token_form_has_the_gradient_of_the_ratio_of_rollouts():
    log_ratios = torch.tensor(LOGS, requires_grad=True)
    result = gspo(of_rollouts(log_ratios, [1.0, -2.0, 1.0, -2.0, -2.0]), clip_low=1, clip_high=9)
    per_token = torch.tensor([1 / 2, 1 / 3, 1 / 2, 1 / 3, 1 / 3])  # sequence_mean
    (by_token,) = torch.autograd.grad((per_token * result.loss).sum(), log_ratios)
    first = log_ratios[[0, 2]].mean().exp()
    second = log_ratios[[1, 3, 4]].mean().exp()
    (by_rollout,) = torch.autograd.grad(-first * 1.0 + second * 2.0, log_ratios)
    torch.testing.assert_close(by_token, by_rollout)


# -- bounded weights on REINFORCE (CISPO)


def test_cispo_weighs_the_log_prob_and_bounds_the_weight_only():
    ratios = torch.tensor([0.4, 1.0, 3.0, 3.0]).log()
    logprobs = torch.tensor([-1.0, -2.0, -0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, 2.0, -2.0])
    own = SurrogateInput(ratios, logprobs, advantages, torch.zeros(4, dtype=torch.int64))
    result = cispo(own, weight_low=0.5, weight_high=2.0)
    weights = torch.tensor([0.5, 1.0, 2.0, 2.0])
    torch.testing.assert_close(result.loss, -weights * advantages * logprobs)
    result.loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -weights * advantages)  # no token is lost
    assert result.clipped.tolist() == [True, False, True, True]


def test_tokens_are_cut_from_above_where_their_ratio_exceeds_the_bound():
    log_ratios = torch.tensor([0.5, -0.5, 2.0, 0.0])
    result = clipped(inputs(log_ratios, torch.tensor([1.0, -1.0, -1.0, 1.0])))
    assert result.clipped.tolist() == [True, True, True, False]
    assert result.above.tolist() == [True, False, True, False]  # the third by the dual clip
    weighed = cispo(inputs(log_ratios, torch.ones(4)), weight_low=0.9, weight_high=1.1)
    assert weighed.clipped.tolist() == [True, True, True, False]
    assert weighed.above.tolist() == [True, False, True, False]


def test_cispo_has_no_gradient_through_the_weight():
    log_ratios = torch.zeros(2, requires_grad=True)
    own = SurrogateInput(
        log_ratios, torch.zeros(2), torch.ones(2), torch.zeros(2, dtype=torch.int64)
    )
    assert not cispo(own).loss.requires_grad


@pytest.mark.parametrize("surrogate", [clipped, gspo, cispo])
def test_on_policy_all_surrogates_have_the_same_gradient(surrogate):
    logprobs = torch.tensor([-1.0, -0.3, -2.0, -0.1, -4.0], requires_grad=True)
    advantages = torch.tensor([1.5, -2.0, 1.5, -2.0, -2.0])
    own = SurrogateInput(logprobs - logprobs.detach(), logprobs, advantages, ROLLOUT)
    result = surrogate(own)
    result.loss.sum().backward()
    torch.testing.assert_close(logprobs.grad, -advantages)
    assert not result.clipped.any()


@pytest.mark.parametrize(
    ("surrogate", "bounds", "message"),
    [
        (gspo, {"clip_low": 2.0}, r"clip_low=2\.0"),
        (cispo, {"weight_low": 1.5}, r"weight_low=1\.5 must lie in \[0, 1\]"),
        (cispo, {"weight_high": 0.2}, r"weight_high=0\.2 be at least 1"),
    ],
)
def test_bounds_of_the_other_surrogates_are_checked_too(surrogate, bounds, message):
    with pytest.raises(ValueError, match=message):
        surrogate(of_rollouts(torch.tensor(LOGS), [1.0] * 5), **bounds)

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.mismatch import (
    WeightSums,
    importance_weights,
    masked,
    summarize_weights,
    truncated,
)

# Two rollouts: of the tokens 0 and 2, and of 1, 3 and 4.
LOGS = torch.tensor([0.5, 0.0, -1.0, 0.9, -0.3])
ROLLOUT = torch.tensor([0, 1, 0, 1, 1])


def weights_of(correction) -> list[float]:
    return correction.weights.tolist()


def test_each_level_by_hand():
    token = importance_weights(LOGS, ROLLOUT, "token")
    assert token.tolist() == pytest.approx([math.exp(x) for x in LOGS.tolist()])
    first, second = math.exp(-0.5), math.exp(0.6)
    product = importance_weights(LOGS, ROLLOUT, "sequence")
    assert product.tolist() == pytest.approx([first, second, first, second, second])
    first, second = math.exp(-0.25), math.exp(0.2)
    mean = importance_weights(LOGS, ROLLOUT, "geometric")
    assert mean.tolist() == pytest.approx([first, second, first, second, second])


def test_truncation_bounds_from_above_only():
    correction = truncated(LOGS, ROLLOUT, cap=1.5)
    assert weights_of(correction) == pytest.approx([1.5, 1.0, math.exp(-1), 1.5, math.exp(-0.3)])
    assert correction.cut.tolist() == [True, False, False, True, False]


def test_masking_keeps_the_weight_inside_the_band_and_nothing_outside():
    correction = masked(LOGS, ROLLOUT, low=0.5, high=2.0)
    assert weights_of(correction) == pytest.approx([math.exp(0.5), 1.0, 0.0, 0.0, math.exp(-0.3)])
    assert correction.cut.tolist() == [False, False, True, True, False]


def test_a_rollout_is_masked_as_a_whole():
    correction = masked(LOGS, ROLLOUT, level="geometric", low=0.8, high=2.0)
    assert correction.cut.tolist() == [True, False, True, False, False]  # e^-0.25 = 0.779
    assert weights_of(correction)[0] == weights_of(correction)[2] == 0


def test_agreement_changes_nothing_at_any_level():
    for level, rule in itertools.product(("token", "sequence", "geometric"), (truncated, masked)):
        correction = rule(torch.zeros(5), ROLLOUT, level=level)
        assert weights_of(correction) == [1.0] * 5
        assert not correction.cut.any()


def test_weights_carry_no_gradient():
    logs = LOGS.clone().requires_grad_()
    for level in ("token", "sequence", "geometric"):
        assert not truncated(logs, ROLLOUT, level=level).weights.requires_grad


def test_a_broken_policy_gives_finite_weights():
    logs = torch.full((5,), 300.0)
    for level in ("token", "sequence", "geometric"):
        assert importance_weights(logs, ROLLOUT, level).max() == pytest.approx(math.exp(20))
        assert weights_of(masked(logs, ROLLOUT, level=level)) == [0.0] * 5


def test_the_product_makes_the_policy_gradient_of_two_tokens_exact_and_single_ratios_do_not():
    # Rollouts of two tokens whose reward depends on both; all nine are enumerated.
    logits = torch.tensor([0.3, -0.4, 0.8], dtype=torch.float64, requires_grad=True)
    sampler = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    logp = torch.log_softmax(logits, dim=0)
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    rewards = (pairs[:, 0] * pairs[:, 1] == 2).double()
    (on_policy,) = torch.autograd.grad(
        (logp[pairs].sum(dim=1).exp() * rewards).sum(), logits, retain_graph=True
    )
    tokens, rollout = pairs.flatten(), torch.arange(9).repeat_interleave(2)
    chances = sampler[pairs].prod(dim=1)[rollout]
    gradients = {}
    for level in ("token", "sequence"):
        weights = importance_weights((logp - sampler.log())[tokens], rollout, level)
        terms = chances * weights * rewards[rollout] * logp[tokens]
        (gradients[level],) = torch.autograd.grad(terms.sum(), logits, retain_graph=True)
    torch.testing.assert_close(gradients["sequence"], on_policy)
    assert (gradients["token"] - on_policy).abs().max() > 0.01


def test_figures_of_weights_by_hand():
    sums = WeightSums()
    sums.add(torch.tensor([1.0, 3.0]))
    sums.add(torch.tensor([0.0, 2.0]))
    figures = summarize_weights(sums)
    assert figures.mean == 1.5
    assert figures.largest == 3.0
    assert figures.ess == pytest.approx(36 / (4 * 14))
    assert figures.chi2 == pytest.approx(14 / 4 - 1)


def test_chi_squared_is_the_divergence_of_the_trainer_from_the_sampler():
    trainer, sampler = torch.tensor([0.25, 0.5, 0.25]), torch.tensor([0.5, 0.25, 0.25])
    sums = WeightSums()
    sums.add((trainer / sampler)[torch.tensor([0, 0, 1, 2])])  # as the sampler draws them
    divergence = float(((trainer - sampler).square() / sampler).sum())
    assert summarize_weights(sums).chi2 == pytest.approx(divergence)
    assert summarize_weights(sums).mean == pytest.approx(1.0)


def test_figures_of_nothing_and_of_tokens_that_are_all_masked_are_finite():
    assert summarize_weights(WeightSums()) == (0.0, 0.0, 0.0, 0.0)
    sums = WeightSums()
    sums.add(torch.zeros(3))
    assert summarize_weights(sums) == (0.0, 0.0, 0.0, -1.0)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20))
@settings(deadline=None, max_examples=50)
def test_the_effective_share_lies_between_one_token_and_all(weights):
    sums = WeightSums()
    sums.add(torch.tensor(weights, dtype=torch.float64))
    ess = summarize_weights(sums).ess
    if max(weights) > 1e-3:
        assert 1 / len(weights) - 1e-9 <= ess <= 1 + 1e-9


@pytest.mark.parametrize(
    ("rule", "bounds", "message"),
    [
        (truncated, {"cap": 0.9}, r"cap=0\.9 must be at least 1"),
        (truncated, {"level": "rollout"}, r"level='rollout': choose one of"),
        (masked, {"low": 1.1}, r"low=1\.1 must lie in \[0, 1\]"),
        (masked, {"high": 0.9}, r"high=0\.9 be at least 1"),
        (masked, {"low": -0.1}, r"low=-0\.1"),
    ],
)
def test_bounds_that_cannot_work_are_refused(rule, bounds, message):
    with pytest.raises(ValueError, match=message):
        rule(LOGS, ROLLOUT, **bounds)


def test_every_token_needs_its_rollout():
    with pytest.raises(ValueError, match="of one length"):
        truncated(LOGS, ROLLOUT[:3])

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.entropy import (
    measure_tokens,
    sampled_entropy,
    sampled_entropy_t1,
    token_entropy,
)
from e3rl.functional.logprobs import token_logprobs


def random_logits(seed, rows=6, width=9, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)


def test_a_fair_and_a_biased_coin_worked_by_hand():
    logits = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    entropy = token_entropy(logits, torch.ones(2))
    biased = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(entropy, torch.tensor([math.log(2), biased]))
    # ln p is ln 3 apart between the sides: variance (3/4)(1/4)(ln 3)².
    varentropy = measure_tokens(logits, torch.tensor([0, 1]), torch.ones(2))[2]
    torch.testing.assert_close(varentropy, torch.tensor([0.0, 3 / 16 * math.log(3) ** 2]))


@given(st.integers(0, 2**31), st.floats(0.05, 20.0), st.floats(0.01, 100.0))
@settings(deadline=None, max_examples=60)
def test_entropy_lies_between_zero_and_that_of_the_uniform(seed, tau, scale):
    logits = random_logits(seed, scale=scale).float()
    entropy = token_entropy(logits, torch.full((6,), tau))
    assert (entropy >= 0).all()
    assert (entropy <= math.log(9) + 1e-5).all()


@given(st.integers(0, 2**31), st.floats(0.3, 3.0))
@settings(deadline=None, max_examples=40)
def test_varentropy_is_the_slope_of_entropy_in_log_temperature(seed, tau):
    logits, step = random_logits(seed), 1e-4
    taus = torch.full((6,), tau, dtype=torch.float64)
    above = token_entropy(logits, taus * math.exp(step))
    below = token_entropy(logits, taus * math.exp(-step))
    slope = (above - below) / (2 * step)
    found = measure_tokens(logits, torch.zeros(6, dtype=torch.int64), taus)[2]
    torch.testing.assert_close(found, slope, atol=1e-6, rtol=1e-5)


@given(st.integers(0, 2**31), st.floats(0.3, 3.0))
@settings(deadline=None, max_examples=40)
def test_one_softmax_gives_what_each_quantity_gives_by_itself(seed, tau):
    logits, taus = random_logits(seed), torch.full((6,), tau, dtype=torch.float64)
    tokens = torch.arange(6)
    logprobs, entropy, _ = measure_tokens(logits, tokens, taus)
    torch.testing.assert_close(logprobs, token_logprobs(logits, tokens, taus))
    torch.testing.assert_close(entropy, token_entropy(logits, taus))


def test_the_gradient_is_that_of_finite_differences():
    logits = random_logits(0, rows=3, width=5).requires_grad_()
    taus = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda z: token_entropy(z, taus), logits)


@pytest.mark.parametrize("tau", [0.6, 1.0, 1.5])
def test_the_weighted_estimate_has_the_entropy_at_one_as_its_expectation(tau):
    logits = random_logits(2, rows=1)
    tokens = torch.arange(9)
    rows, taus = logits.expand(9, 9), torch.full((9,), tau, dtype=torch.float64)
    at_tau = token_logprobs(rows, tokens, taus)
    at_one = token_logprobs(rows, tokens, torch.ones_like(taus))
    expectation = (at_tau.exp() * sampled_entropy_t1(at_tau, at_one)).sum()
    exact = token_entropy(logits, torch.ones(1))[0]
    torch.testing.assert_close(expectation, exact)


def test_without_the_weight_it_would_be_the_cross_entropy():
    logits, taus = random_logits(2, rows=1).expand(9, 9), torch.full((9,), 1.5)
    at_tau = token_logprobs(logits, torch.arange(9), taus)
    at_one = token_logprobs(logits, torch.arange(9), torch.ones(9))
    cross_entropy = (at_tau.exp() * -at_one).sum()
    assert cross_entropy > token_entropy(logits[:1], taus[:1])[0] + 0.01


def geometric(q, longest=1500):
    """Chance, sum of -ln p and tokens of completions that stop with probability q per token."""
    for length in range(1, longest):
        logprobs = torch.full((1, length), math.log(1 - q), dtype=torch.float64)
        logprobs[0, -1] = math.log(q)
        mask = torch.ones(1, length, dtype=torch.bool)
        total, tokens = sampled_entropy(logprobs, mask, torch.ones(1, dtype=torch.float64))
        yield q * (1 - q) ** (length - 1), total, tokens


@pytest.mark.parametrize(("q", "golden", "biased"), [(0.1, 0.325, 0.668), (0.03, 0.135, 0.407)])
def test_token_weighting_is_unbiased_where_completions_end_at_random(q, golden, biased):
    exact = -(1 - q) * math.log(1 - q) - q * math.log(q)
    outcomes = list(geometric(q))
    mean_sum = sum(chance * total for chance, total, _ in outcomes)
    mean_tokens = sum(chance * tokens for chance, _, tokens in outcomes)
    assert mean_sum / mean_tokens == pytest.approx(exact, abs=1e-9)
    assert exact == pytest.approx(golden, abs=5e-4)
    # The mean of per-completion means is another number altogether.
    per_completion = sum(chance * total / tokens for chance, total, tokens in outcomes)
    mean_inverse_length = -q * math.log(q) / (1 - q)
    analytic = -math.log(1 - q) + math.log((1 - q) / q) * mean_inverse_length
    assert per_completion == pytest.approx(analytic, abs=1e-9)
    assert per_completion == pytest.approx(biased, abs=5e-4)


def test_padding_never_enters_the_sampled_entropy():
    logprobs = torch.tensor([[-1.0, -2.0, 99.0], [-0.5, float("nan"), -math.inf]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert sampled_entropy(logprobs, mask, torch.ones(2)) == (3.5, 3)


def test_a_rollout_counts_as_often_as_it_is_told():
    logprobs, mask = torch.tensor([[-1.0, -2.0], [-4.0, 0.0]]), torch.tensor([[1, 1], [1, 0]]) > 0
    assert sampled_entropy(logprobs, mask, torch.tensor([3.0, 0.5])) == (3 * 3 + 2, 3 * 2 + 0.5)


def test_a_mask_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="bool mask"):
        sampled_entropy(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2))
    with pytest.raises(ValueError, match="of one shape"):
        sampled_entropy(torch.zeros(2, 3), torch.ones(2, 2, dtype=torch.bool), torch.ones(2))

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.entropy import token_entropy
from e3rl.functional.logprobs import token_logprobs


def test_two_tokens_worked_by_hand():
    # Odds e^(ln 3 / τ) : 1, so p = 3/4 at τ = 1 and 1/(1 + √3) for the other token at τ = 2.
    logits = torch.tensor([[math.log(3), 0.0], [math.log(3), 0.0]])
    values = token_logprobs(logits, torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    expected = torch.tensor([math.log(3 / 4), -math.log(1 + math.sqrt(3))])
    torch.testing.assert_close(values, expected)


@given(st.integers(0, 2**31), st.floats(0.3, 3.0))
@settings(deadline=None, max_examples=30)
def test_probabilities_of_all_tokens_add_up_to_one(seed, tau):
    logits = 5 * torch.randn(1, 7, generator=torch.Generator().manual_seed(seed))
    values = token_logprobs(logits.expand(7, 7), torch.arange(7), torch.full((7,), tau))
    assert values.exp().sum().item() == pytest.approx(1.0, abs=1e-5)


def test_bfloat16_logits_are_scored_in_float32():
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0)).bfloat16() * 8
    tokens, taus = torch.tensor([0, 7, 299, 3, 150]), torch.linspace(0.5, 1.5, 5)
    exact = torch.log_softmax(logits.double() / taus[:, None], dim=1)
    values = token_logprobs(logits, tokens, taus)
    assert values.dtype == torch.float32
    expected = exact.gather(1, tokens[:, None]).squeeze(1).float()
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-6)


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[5000.0, 4990.0, -5000.0]])
    value = token_logprobs(logits, torch.tensor([1]), torch.tensor([0.5]))
    assert value.item() == pytest.approx(-20.0, abs=1e-6)


def test_the_gradient_is_that_of_finite_differences():
    logits = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    tokens, taus = torch.tensor([0, 5, 2, 2]), torch.tensor([0.5, 1.0, 2.0, 1.3])
    assert torch.autograd.gradcheck(lambda z: token_logprobs(z, tokens, taus.double()), logits)


def test_nothing_waits_for_another_device_to_answer():
    """A tensor of the meta device has no values, and raises where somebody asks for one."""
    logits, tokens, taus = (
        torch.empty(*shape, dtype=dtype, device="meta")
        for shape, dtype in (((3, 5), torch.float32), ((3,), torch.int64), ((3,), torch.float32))
    )
    assert token_logprobs(logits, tokens, taus).shape == (3,)
    assert token_entropy(logits, taus).shape == (3,)


def test_greedy_temperatures_are_refused():
    with pytest.raises(ValueError, match=r"above 0, got 0\.0; greedy"):
        token_logprobs(torch.zeros(2, 3), torch.tensor([0, 1]), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("shape", [(3, 4), (2, 4, 1), (2,)])
def test_logits_that_do_not_fit_the_tokens_are_refused(shape):
    with pytest.raises(ValueError, match="logits"):
        token_logprobs(torch.zeros(shape), torch.tensor([0, 1]), torch.ones(2))

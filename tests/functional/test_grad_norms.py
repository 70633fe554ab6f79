import math

import pytest
import torch

from e3rl.functional.grad_norms import logit_grad_norm_squared
from e3rl.functional.logprobs import token_logprobs

DOUBLE = torch.float64


def test_two_equal_logits_worked_by_hand():
    # p = (1/2, 1/2): residual (1/2, -1/2), squared norm 1/2, at temperature 2 a quarter of it.
    logits = torch.zeros(2, 2)
    found = logit_grad_norm_squared(logits, torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))
    assert found.tolist() == pytest.approx([0.5, 0.125])


def test_a_completion_has_the_squared_norm_that_autograd_finds():
    torch.manual_seed(0)
    logits = torch.randn(5, 7, dtype=DOUBLE, requires_grad=True)
    tokens = torch.tensor([0, 3, 6, 1, 1])
    taus = torch.tensor([0.5, 0.7, 1.0, 1.3, 2.0], dtype=DOUBLE)
    (gradient,) = torch.autograd.grad(token_logprobs(logits, tokens, taus).sum(), logits)
    found = logit_grad_norm_squared(logits.detach(), tokens, taus)
    assert found.tolist() == pytest.approx(gradient.square().sum(dim=1).tolist(), rel=1e-12)
    assert float(found.sum()) == pytest.approx(float(gradient.square().sum()), rel=1e-12)


def test_a_token_that_is_nearly_certain_keeps_its_small_norm_in_float32():
    # p(a) = 1 - q with q = e^-12/(1 + e^-12): squared norm 2q², 7.6e-11, below float32's rounding.
    q = math.exp(-12) / (1 + math.exp(-12))
    found = logit_grad_norm_squared(
        torch.tensor([[12.0, 0.0]]), torch.tensor([0]), torch.tensor([1.0])
    )
    assert float(found) == pytest.approx(2 * q * q, rel=0.02)


def test_greedy_temperatures_are_refused():
    with pytest.raises(ValueError, match="temperatures must be above 0"):
        logit_grad_norm_squared(torch.zeros(1, 2), torch.tensor([0]), torch.tensor([0.0]))

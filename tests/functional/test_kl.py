import math

import pytest
import torch

from e3rl.functional.kl import k3


def test_it_is_zero_for_equal_and_worked_by_hand_for_halved_probabilities():
    # d = ln 2: 2 - ln 2 - 1; d = -ln 2: 1/2 + ln 2 - 1.
    logprobs = torch.tensor([-1.0, math.log(0.25), math.log(0.5)])
    reference = torch.tensor([-1.0, math.log(0.5), math.log(0.25)])
    expected = torch.tensor([0.0, 1 - math.log(2), math.log(2) - 0.5])
    torch.testing.assert_close(k3(logprobs, reference), expected)


def test_its_expectation_is_the_divergence_from_the_reference():
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    divergence = (p * (p / q).log()).sum()
    torch.testing.assert_close((p * k3(p.log(), q.log())).sum(), divergence)


def test_as_a_loss_its_mean_gradient_is_that_of_the_opposite_divergence():
    logits = torch.tensor([0.4, -0.3, 1.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    logprobs = torch.log_softmax(logits, dim=0)
    weight = logprobs.exp().detach()
    (of_loss,) = torch.autograd.grad((weight * k3(logprobs, q.log())).sum(), logits)
    opposite = (q * (q.log() - torch.log_softmax(logits, dim=0))).sum()
    (of_opposite,) = torch.autograd.grad(opposite, logits)
    torch.testing.assert_close(of_loss, of_opposite)


def test_small_gaps_do_not_drown_in_rounding():
    gap = torch.tensor([1e-3])
    assert k3(torch.tensor([0.0]), gap).item() == pytest.approx(5.0017e-7, rel=1e-3)


def test_a_huge_gap_stays_finite():
    value = k3(torch.tensor([-1000.0]), torch.tensor([0.0]))
    assert value.item() == pytest.approx(math.exp(20) - 21, rel=1e-5)


def test_tokens_of_different_number_are_refused():
    with pytest.raises(ValueError, match="of one length"):
        k3(torch.zeros(2), torch.zeros(3))

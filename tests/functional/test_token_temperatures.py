import pytest
import torch

from e3rl.functional.token_temperatures import factor_sums, token_temperatures

# Two rollouts: a prompt of two tokens with three sampled ones, a prompt of one with two.
MASK = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]], dtype=torch.bool)
TAUS = torch.tensor([1.0, 2.0])
FACTORS = torch.tensor([1.5, 1.0, 0.5, 0.25])


def test_the_first_sampled_token_has_the_first_factor_whatever_the_prompt():
    found = token_temperatures(TAUS, FACTORS, MASK)
    assert found[0, 2:].tolist() == [1.5, 1.0, 0.5]
    assert found[1, 1:3].tolist() == [3.0, 2.0]
    assert found[~MASK].tolist() == [1, 1, 2, 2, 2]


def test_without_factors_every_token_has_the_rollouts_temperature():
    assert token_temperatures(TAUS, None, MASK).tolist() == [[1.0] * 5, [2.0] * 5]


def test_sums_of_factors_are_those_of_the_first_tokens():
    lengths = MASK.sum(dim=1)
    assert factor_sums(lengths, FACTORS).tolist() == [3.0, 2.5]
    assert factor_sums(lengths, None).tolist() == [3, 2]
    by_token = token_temperatures(TAUS, FACTORS, MASK)
    together = (factor_sums(lengths, FACTORS) * TAUS).sum()
    assert float(together) == pytest.approx(float(by_token[MASK].sum()))


def test_a_completion_longer_than_the_factors_is_refused():
    with pytest.raises(ValueError, match=r"a completion has 3 tokens.*factors for 2"):
        token_temperatures(TAUS, FACTORS[:2], MASK)
    with pytest.raises(ValueError, match=r"temperatures \(n,\)"):
        token_temperatures(TAUS[:1], FACTORS, MASK)

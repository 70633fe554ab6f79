import numpy as np
import pytest

from e3rl.budgets.neyman import cures_deviation, gvm_weight


def test_gvm_weight_is_the_published_expression_and_zero_at_zero() -> None:
    p = np.array([0.0, 0.001, 0.5, 1.0])
    expected = [2 / np.sqrt(x + 1e-3 / x) for x in p[1:]]
    assert gvm_weight(p, np.full(4, 2.0)).tolist() == pytest.approx([0, *expected])


def test_gvm_weight_is_largest_at_the_root_of_alpha() -> None:
    p = np.linspace(0.0, 1.0, 100_001)
    assert p[gvm_weight(p, np.ones_like(p)).argmax()] == pytest.approx(np.sqrt(1e-3), abs=1e-5)


def test_cures_deviation_is_that_of_a_centred_sample_by_enumeration() -> None:
    # A right rollout (probability p) moves by q·g₊, a wrong one by -p·g₋, g being 1 or 3, 2 or 5.
    p, q = 0.3, 0.7
    samples = np.array([q * 1, q * 3, -p * 2, -p * 5])
    chances = np.array([p / 2, p / 2, q / 2, q / 2])
    variance = (chances * samples**2).sum() - (chances * samples).sum() ** 2
    found = cures_deviation(*(np.array([x]) for x in (p, 2.0, 5.0, 3.5, 14.5)))
    assert found[0] == pytest.approx(np.sqrt(variance))


def test_cures_deviation_of_equal_norms_is_that_of_a_coin() -> None:
    p, one = np.array([0.0, 0.2, 1.0]), np.ones(3)
    assert cures_deviation(p, one, one, one, one).tolist() == pytest.approx([0, 0.4, 0])

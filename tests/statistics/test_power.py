import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.power import (
    VarianceComponents,
    detectable_difference,
    problems_needed,
    seeds_needed,
    variance_components,
)

ABOVE_ZERO = st.floats(0.01, 1)


def table(rng, n_seeds, n_problems, seed, problem, residual, mean=0.0):
    return (
        mean
        + seed * rng.normal(size=(n_seeds, 1))
        + problem * rng.normal(size=(1, n_problems))
        + residual * rng.normal(size=(n_seeds, n_problems))
    )


def test_components_of_a_table_worked_by_hand():
    # Row means 1 and 4, column means 1 and 4, mean 2.5; what is left is +-0.5.
    components = variance_components([[0.0, 2.0], [2.0, 6.0]])
    assert components.residual == pytest.approx(1.0)
    assert components.seed == pytest.approx(4.5 - 0.5)
    assert components.problem == pytest.approx(4.5 - 0.5)


def test_components_are_unbiased():
    rng = np.random.default_rng(0)
    found = [variance_components(table(rng, 8, 40, 0.3, 1.0, 0.5)) for _ in range(300)]
    assert np.mean([c.seed for c in found]) == pytest.approx(0.09, rel=0.1)
    assert np.mean([c.problem for c in found]) == pytest.approx(1.0, rel=0.05)
    assert np.mean([c.residual for c in found]) == pytest.approx(0.25, rel=0.02)


def test_a_component_is_never_negative():
    # Every seed has the same mean: less than what the rest alone would give.
    components = variance_components([[1.0, -1.0], [-1.0, 1.0]])
    assert (components.seed, components.problem) == (0.0, 0.0)
    assert components.residual == 4.0


@pytest.mark.parametrize(("spread", "difference", "needed"), [(0.2, 0.02, 785)])
def test_problems_for_a_paired_comparison_of_one_seed(spread, difference, needed):
    assert problems_needed(VarianceComponents(0.0, spread**2, 0.0), difference, 1) == needed


@pytest.mark.parametrize(("difference", "needed"), [(0.02, 4), (0.01, 16)])
def test_seeds_per_arm_for_seeds_that_are_not_paired(difference, needed):
    both_arms = VarianceComponents(2 * 0.01**2, 0.0, 0.0)
    assert seeds_needed(both_arms, difference, 1000) == needed


def test_the_detectable_difference_is_found_as_often_as_promised():
    components, rng = VarianceComponents(0.02**2, 0.1**2, 0.2**2), np.random.default_rng(1)
    difference = detectable_difference(components, 6, 80)
    parts = (0.02, 0.1, 0.2)
    means = [table(rng, 6, 80, *parts, mean=difference).mean() for _ in range(2000)]
    found = np.abs(means) > 1.959964 * components.standard_error(6, 80)
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_the_standard_error_is_that_of_a_simulated_mean():
    rng = np.random.default_rng(2)
    means = [table(rng, 4, 30, 0.1, 0.5, 0.8).mean() for _ in range(4000)]
    expected = VarianceComponents(0.01, 0.25, 0.64).standard_error(4, 30)
    assert np.std(means) == pytest.approx(expected, rel=0.05)


@given(ABOVE_ZERO, ABOVE_ZERO, ABOVE_ZERO, st.integers(1, 30), st.integers(1, 500))
@settings(deadline=None, max_examples=60)
def test_the_needed_numbers_are_the_smallest_that_suffice(seed, problem, residual, s, p):
    components = VarianceComponents(seed, problem, residual)
    difference = detectable_difference(components, s, p)
    assert seeds_needed(components, difference, p) == s
    assert problems_needed(components, difference, s) == p
    more = seeds_needed(components, 1.01 * difference, p)
    assert more is not None
    assert more <= s


def test_problems_cannot_replace_seeds_nor_seeds_problems():
    components = VarianceComponents(seed=0.01, problem=0.01, residual=0.0)
    assert problems_needed(components, 0.1, n_seeds=2) is None
    assert seeds_needed(components, 0.1, n_problems=2) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: variance_components([[1.0, 2.0]]), "run another seed"),
        (lambda: variance_components([[1.0, float("nan")], [1.0, 2.0]]), "NaN"),
        (lambda: detectable_difference(VarianceComponents(1, 1, 1), 0, 5), "n_seeds=0"),
        (lambda: detectable_difference(VarianceComponents(1, 1, 1), 1, 5, power=1.0), "power=1.0"),
        (lambda: seeds_needed(VarianceComponents(1, 1, 1), 0.0, 5), "difference=0.0"),
    ],
)
def test_senseless_designs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

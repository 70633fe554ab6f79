import numpy as np
import pytest

from e3rl.statistics.interval import Estimate
from e3rl.statistics.means import (
    limit_by_seeds,
    mean_over_seeds_and_problems,
    mean_over_units,
)
from e3rl.statistics.power import (
    VarianceComponents,
    detectable_difference,
    error_range,
    problems_needed,
    seed_variance_interval,
    seeds_needed,
    variance_components,
)


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


def test_a_variance_that_is_small_against_the_rest_may_be_estimated_below_0():
    # Every seed has the same mean: less than what the rest alone would give.
    components = variance_components([[1.0, -1.0], [-1.0, 1.0]])
    assert (components.seed, components.problem, components.residual) == (-2.0, -2.0, 4.0)
    assert components.expected(2, 2).standard_error == pytest.approx(1.0)  # √(4/4)
    assert seed_variance_interval([[1.0, -1.0], [-1.0, 1.0]]).mean == -2.0


def test_the_interval_of_a_seed_variance_that_is_all_is_that_of_chi_square():
    # Means 1, 2, 3 of three seeds: σ² 1, and 2·1/7.3778 and 2·1/.05064 of χ² with two degrees.
    table = np.repeat([[1.0], [2.0], [3.0]], 500, axis=1)
    found = seed_variance_interval(table)
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 0.27108, 39.498), rel=1e-3)


def test_the_interval_of_a_seed_variance_lies_on_both_sides_of_0_where_there_is_none():
    found = seed_variance_interval(np.random.default_rng(3).normal(size=(5, 200)))
    assert found.low < 0 < found.high


@pytest.mark.parametrize(("spread", "difference", "needed"), [(0.2, 0.02, 787)])
def test_problems_for_a_paired_comparison_of_one_seed(spread, difference, needed):
    # 2.8016²·.2²/.02² = 784.9 of a normal; Student's t wants two more.
    assert problems_needed(VarianceComponents(0.0, spread**2, 0.0), difference, 1) == needed


@pytest.mark.parametrize(("difference", "needed"), [(0.02, 7), (0.01, 18)])
def test_seeds_per_arm_for_seeds_that_are_not_paired(difference, needed):
    # 4 and 16 of a normal; with three degrees of freedom four seeds do not do.
    both_arms = VarianceComponents(2 * 0.01**2, 0.0, 0.0)
    assert seeds_needed(both_arms, difference, 1000) == needed


def test_what_is_detectable_worked_by_hand():
    # Five units of standard deviation 1: 3.7611 standard errors of 1/√5.
    estimate = mean_over_units([-1.0, -1.0, 0.0, 1.0, 1.0])
    assert detectable_difference(estimate) == pytest.approx(3.7611 / np.sqrt(5), abs=1e-4)


def test_how_far_a_standard_error_may_be_off() -> None:
    # Tables of chi-square with 4 degrees: 5 % below .7107, 95 % below 9.4877.
    assert error_range(4) == pytest.approx(((4 / 9.4877) ** 0.5, (4 / 0.7107) ** 0.5), rel=1e-3)
    errors = np.random.default_rng(3).normal(size=(20_000, 5)).std(axis=1, ddof=1)
    low, high = error_range(4)
    assert np.mean((errors * low <= 1) & (errors * high >= 1)) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(("n_seeds", "parts"), [(5, (0.03, 0.1, 0.2)), (10, (0.0, 0.2, 0.3))])
def test_a_detectable_difference_is_found_as_often_as_promised(n_seeds, parts):
    """The verdict's own test, on studies whose true difference is the detectable one."""
    rng, n_problems = np.random.default_rng(1), 80
    design = VarianceComponents(*(part**2 for part in parts)).expected(n_seeds, n_problems)
    difference = detectable_difference(design)
    found = [
        mean_over_seeds_and_problems(table(rng, n_seeds, n_problems, *parts, difference)).p_value
        for _ in range(800)
    ]
    assert np.mean(np.array(found) < 0.05) == pytest.approx(0.8, abs=0.05)


def test_the_standard_error_is_that_of_a_simulated_mean():
    rng = np.random.default_rng(2)
    means = [table(rng, 4, 30, 0.1, 0.5, 0.8).mean() for _ in range(4000)]
    expected = VarianceComponents(0.01, 0.25, 0.64).expected(4, 30).standard_error
    assert np.std(means) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("parts", [(0.02, 0.1, 0.2), (0.0, 0.1, 0.3), (0.05, 0.0, 0.1)])
def test_the_needed_numbers_suffice_and_one_fewer_does_not(parts):
    components = VarianceComponents(*(part**2 for part in parts))
    seeds, problems = seeds_needed(components, 0.05, 60), problems_needed(components, 0.08, 4)

    def found(n_seeds, n_problems):
        expected = components.expected(n_seeds, n_problems)
        return detectable_difference(limit_by_seeds(expected, n_seeds))

    if seeds is not None:
        assert found(seeds, 60) <= 0.05
        assert found(seeds - 1, 60) > 0.05
    if problems is not None:
        assert found(4, problems) <= 0.08
        assert found(4, problems - 1) > 0.08
    assert (seeds is None, problems is None) == {
        0.02: (False, False),
        0.0: (False, False),
        0.05: (False, True),
    }[parts[0]]


def test_few_seeds_need_what_their_own_test_finds():
    # As entropy_control has them: by the problems' degrees of freedom two seeds would be enough.
    components = VarianceComponents(0.0, 0.0503**2, 0.0717**2)
    two = components.expected(2, 256)
    assert detectable_difference(two) < 0.02
    assert detectable_difference(limit_by_seeds(two, 2)) > 0.07
    assert seeds_needed(components, 0.02, 256) == 4


def test_problems_cannot_replace_seeds_nor_seeds_problems():
    components = VarianceComponents(seed=0.01, problem=0.01, residual=0.0)
    assert problems_needed(components, 0.1, n_seeds=2) is None
    assert seeds_needed(components, 0.1, n_problems=2) is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: variance_components([[1.0, 2.0]]), "run another seed"),
        (lambda: variance_components([[1.0, float("nan")], [1.0, 2.0]]), "NaN"),
        (lambda: VarianceComponents(1, 1, 1).expected(0, 5), "n_seeds=0"),
        (lambda: detectable_difference(Estimate(0, 1, 4), power=1.0), "power=1.0"),
        (lambda: seeds_needed(VarianceComponents(1, 1, 1), 0.0, 5), "difference=0.0"),
    ],
)
def test_senseless_designs_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

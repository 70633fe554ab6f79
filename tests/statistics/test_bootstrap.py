import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics import bootstrap
from e3rl.statistics.bootstrap import (
    cluster_bootstrap,
    cluster_bootstrap_columns,
    hierarchical_bootstrap,
    hierarchical_difference,
    paired_difference,
)

HALF_95 = 1.959964  # half width of a central 95 % normal interval in standard errors


def half_width(interval):
    return (interval.high - interval.low) / 2


def test_the_interval_is_the_quantile_of_all_possible_resamples():
    values = np.array([0.0, 1.0, 5.0])
    means = [np.mean(draw) for draw in itertools.product(values, repeat=3)]
    interval = cluster_bootstrap(values, level=0.8, n_boot=20_000)
    assert interval.mean == 2.0
    assert interval.low == pytest.approx(np.quantile(means, 0.1), abs=1e-12)
    assert interval.high == pytest.approx(np.quantile(means, 0.9), abs=1e-12)


def test_the_width_agrees_with_the_standard_error_of_the_mean():
    values = np.random.default_rng(0).beta(0.5, 0.5, size=400)
    interval = cluster_bootstrap(values, n_boot=4000)
    expected = HALF_95 * values.std() / np.sqrt(values.size)
    assert half_width(interval) == pytest.approx(expected, rel=0.06)


def test_prompts_of_one_cluster_are_drawn_together():
    effect = np.random.default_rng(1).normal(size=50)
    values, clusters = np.repeat(effect, 8), np.repeat(np.arange(50), 8)
    expected = HALF_95 * effect.std() / np.sqrt(50)
    clustered = cluster_bootstrap(values, n_boot=4000, clusters=clusters)
    assert half_width(clustered) == pytest.approx(expected, rel=0.06)
    assert half_width(cluster_bootstrap(values, n_boot=4000)) < 0.5 * expected


def test_clusters_of_unequal_size_keep_the_mean_over_prompts():
    interval = cluster_bootstrap([0.0, 0.0, 0.0, 1.0], clusters=["a", "a", "a", "b"])
    assert interval.mean == 0.25
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_columns_are_resampled_together_and_equal_single_calls():
    table = np.random.default_rng(2).random((30, 3))
    together = cluster_bootstrap_columns(table, seed=5)
    apart = [cluster_bootstrap(table[:, j], seed=5) for j in range(3)]
    for joint, single in zip(together, apart, strict=True):
        assert joint.low == pytest.approx(single.low)
        assert joint.high == pytest.approx(single.high)
        assert joint.mean == pytest.approx(single.mean)


def test_another_seed_draws_other_prompts():
    values = np.random.default_rng(3).random(30)
    assert cluster_bootstrap(values, seed=1) == cluster_bootstrap(values, seed=1)
    assert cluster_bootstrap(values, seed=1) != cluster_bootstrap(values, seed=2)


def test_blocks_of_replicates_do_not_change_their_number(monkeypatch):
    monkeypatch.setattr(bootstrap, "BLOCK_CELLS", 100)
    rng = np.random.default_rng(0)
    blocks = list(bootstrap._resamples(rng, 25, 30))
    assert sum(len(block) for block in blocks) == 25
    assert all((block.sum(axis=1) == 30).all() for block in blocks)


def test_pairing_removes_what_both_methods_share():
    rng = np.random.default_rng(4)
    difficulty = rng.random(200)
    a, b = difficulty + 0.02 + 0.01 * rng.normal(size=200), difficulty
    interval = paired_difference(a, b, n_boot=4000)
    assert interval.mean == pytest.approx((a - b).mean())
    assert half_width(interval) == pytest.approx(HALF_95 * (a - b).std() / np.sqrt(200), rel=0.06)
    assert interval.low > 0


def test_seeds_and_problems_both_add_their_variance():
    rng = np.random.default_rng(5)
    seed_effect, problem_effect = rng.normal(size=(40, 1)), 3 * rng.normal(size=(1, 300))
    interval = hierarchical_bootstrap(seed_effect + problem_effect, n_boot=4000)
    variance = seed_effect.var() / 40 + problem_effect.var() / 300
    assert interval.mean == pytest.approx(seed_effect.mean() + problem_effect.mean())
    assert half_width(interval) == pytest.approx(HALF_95 * np.sqrt(variance), rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_seeds", "seed_effect", "at_least", "at_most"),
    [(2, 0.02, 0.70, 0.87), (5, 0.02, 0.88, 0.97), (5, 0.0, 0.95, 1.0)],
)
def test_the_truth_is_held_as_often_as_told_but_for_two_seeds_that_differ(
    n_seeds, seed_effect, at_least, at_most
):
    rng = np.random.default_rng(9)
    held = 0
    for study in range(300):
        table = 0.04 * rng.normal(size=(1, 128)) + 0.08 * rng.normal(size=(n_seeds, 128))
        table += seed_effect * rng.normal(size=(n_seeds, 1))
        interval = hierarchical_bootstrap(table, n_boot=600, seed=study)
        held += interval.low <= 0 <= interval.high
    assert at_least <= held / 300 <= at_most


def test_blocks_of_problems_meet_their_own_seeds(monkeypatch):
    table = np.random.default_rng(6).random((4, 50))
    whole = hierarchical_bootstrap(table, n_boot=500)
    monkeypatch.setattr(bootstrap, "BLOCK_CELLS", 1000)
    assert hierarchical_bootstrap(table, n_boot=500) == whole


def test_a_difference_draws_seeds_for_each_method_and_problems_for_both():
    rng = np.random.default_rng(7)
    difficulty, gain = 3 * rng.normal(size=(1, 300)), rng.normal(size=(1, 300))
    luck_a, luck_b = rng.normal(size=(40, 1)), 2 * rng.normal(size=(30, 1))
    interval = hierarchical_difference(luck_a + difficulty + gain, luck_b + difficulty, n_boot=4000)
    variance = luck_a.var() / 40 + luck_b.var() / 30 + gain.var() / 300
    assert interval.mean == pytest.approx(luck_a.mean() - luck_b.mean() + gain.mean())
    assert half_width(interval) == pytest.approx(HALF_95 * np.sqrt(variance), rel=0.06)


def test_a_difference_enumerates_like_all_draws_of_seeds_and_problems():
    a, b = np.array([[1.0, 5.0], [2.0, 8.0]]), np.array([[0.0, 1.0], [3.0, 3.0]])
    pairs = list(itertools.product(range(2), repeat=2))
    means = [
        a[np.ix_(i, p)].mean() - b[np.ix_(j, p)].mean() for i in pairs for j in pairs for p in pairs
    ]
    interval = hierarchical_difference(a, b, level=0.8, n_boot=20_000)
    assert interval.low == pytest.approx(np.quantile(means, 0.1), abs=1e-12)
    assert interval.high == pytest.approx(np.quantile(means, 0.9), abs=1e-12)


def test_paired_seeds_cancel_what_both_methods_share():
    rng = np.random.default_rng(8)
    luck = rng.normal(size=(10, 1))
    a, b = luck + rng.random((10, 40)), luck + rng.random((10, 40))
    paired = hierarchical_difference(a, b, paired_seeds=True)
    assert paired == hierarchical_bootstrap(a - b)
    assert half_width(paired) < 0.5 * half_width(hierarchical_difference(a, b))


@pytest.mark.parametrize(("shape", "paired"), [((3, 5), False), ((2, 4), True)])
def test_tables_that_do_not_fit_together_are_refused(shape, paired):
    with pytest.raises(ValueError, match="same problems"):
        hierarchical_difference(np.ones((3, 4)), np.ones(shape), paired_seeds=paired)


def test_a_single_prompt_tells_nothing_of_the_spread():
    interval = cluster_bootstrap([0.5])
    assert interval.mean == 0.5
    assert np.isnan([interval.low, interval.high]).all()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20), st.floats(0.5, 0.99))
@settings(deadline=None, max_examples=30)
def test_the_interval_lies_within_the_values(values, level):
    interval = cluster_bootstrap(values, level=level, n_boot=100)
    slack = 1e-12
    assert min(values) - slack <= interval.low <= interval.high <= max(values) + slack


@pytest.mark.parametrize(
    ("values", "settings_", "message"),
    [
        ([], {}, "filled"),
        ([1.0, float("nan")], {}, "1 of 2 values are NaN"),
        ([1.0, 2.0], {"level": 1.0}, "level=1.0"),
        ([1.0, 2.0], {"n_boot": 0}, "n_boot=0"),
        ([1.0, 2.0], {"clusters": [1]}, "must label each of the 2"),
        ([[1.0, 2.0]], {}, "cluster_bootstrap_columns"),
    ],
)
def test_senseless_inputs_are_refused(values, settings_, message):
    with pytest.raises(ValueError, match=message):
        cluster_bootstrap(values, **settings_)


def test_unpaired_values_are_refused():
    with pytest.raises(ValueError, match="same problems"):
        paired_difference([1.0, 2.0], [1.0])

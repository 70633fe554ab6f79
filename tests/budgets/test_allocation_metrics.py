import numpy as np
import pytest

from e3rl.budgets.metrics import allocation_metrics, gini, spearman


def test_gini_equals_the_mean_absolute_difference_by_brute_force() -> None:
    counts = np.array([4, 4, 6, 12, 9])
    brute = np.abs(counts[:, None] - counts[None, :]).sum() / (2 * 5**2 * counts.mean())
    assert gini(counts) == pytest.approx(brute)


def test_gini_of_equal_counts_is_zero_and_of_one_taker_is_nearly_one() -> None:
    assert gini([7, 7, 7]) == 0
    assert gini([0, 0, 0, 12]) == pytest.approx(3 / 4)


def test_spearman_sees_order_only_and_averages_ties() -> None:
    assert spearman([0.1, 0.2, 0.9], [1, 100, 101]) == pytest.approx(1)
    assert spearman([0.1, 0.2, 0.9], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 1, 2.5, 2.5 against 1, 2, 3: 1.5 / sqrt(1.5 · 2).
    assert spearman([0, 1, 1], [0, 1, 2]) == pytest.approx(1.5 / np.sqrt(3))


def test_spearman_is_unknown_where_it_is_undefined() -> None:
    assert spearman([], []) is None
    assert spearman([1.0], [2.0]) is None
    assert spearman([1.0, 1.0], [1.0, 2.0]) is None


def test_allocation_metrics_count_prompts_at_the_bounds() -> None:
    metrics = allocation_metrics(np.array([4, 4, 6, 12]), 4, 12)
    assert (metrics["at_min"], metrics["at_max"]) == (0.5, 0.25)
    assert (metrics["n_min"], metrics["n_max"]) == (4, 12)
    assert metrics["std"] == pytest.approx(np.sqrt(10.75))  # deviations -2.5 -2.5 -0.5 5.5

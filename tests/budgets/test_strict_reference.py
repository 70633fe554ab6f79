"""The published allocator's numbers, defects included."""

import math

import pytest

from e3rl.budgets.strict_reference import published_counts

NAN = math.nan
EIGHTHS = [i / 8 for i in range(8)]


@pytest.mark.parametrize(
    ("ranks", "total", "n_min", "n_max", "published"),
    [
        (EIGHTHS, 64, 4, 12, [4, 5, 6, 7, 8, 10, 12, 12]),
        (EIGHTHS, 64, 6, 10, [6, 6, 7, 7, 8, 10, 10, 10]),
        ([0.9, 0.1, 0.1, 0.1], 32, 4, 12, [15, 7, 5, 5]),
        ([0.1, 0.9], 16, 10, 12, [9, 7]),
        ([0.2, 0.4, 0.6, 0.8], 64, 4, 12, [10, 13, 18, 23]),
        ([NAN] * 8, 64, 4, 12, [12, 12, 12, 12, 4, 4, 4, 4]),
        ([NAN, NAN, 0.2, 0.9, 0.5, 0.4, 0.7, 0.3], 64, 4, 12, [4, 4, 6, 13, 10, 8, 12, 7]),
    ],
)
def test_published_numbers_are_reproduced(
    ranks: list[float], total: int, n_min: int, n_max: int, published: list[int]
) -> None:
    assert published_counts(ranks, total, n_min, n_max) == published


def test_equal_halves_split_unequally_as_published() -> None:
    # 4·0.5/(1 + 1e-8) = 1.99999998 falls to 1; the leftover goes to the first in the batch.
    assert published_counts([0.5, 0.5], 8, 2, 12) == [5, 3]


def test_leftover_beyond_all_caps_is_dropped_as_published() -> None:
    assert sum(published_counts([NAN, NAN], 10, 2, 4)) == 8

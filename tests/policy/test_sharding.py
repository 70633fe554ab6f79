"""How ranks make groups that share a policy each."""

import pytest

from e3rl.policy.sharding import Replicas, count_shards


@pytest.mark.parametrize(
    ("replicas", "ranks", "machines", "expected"),
    [(1, 8, 2, 8), (2, 8, 1, 4), (8, 8, 1, 1), ("machines", 12, 3, 4), ("machines", 4, 1, 4)],
)
def test_ranks_are_divided_into_equal_groups(
    replicas: Replicas, ranks: int, machines: int, expected: int
) -> None:
    assert count_shards(replicas, ranks, machines) == expected


@pytest.mark.parametrize("replicas", [0, -1, 3, 16])
def test_unequal_groups_are_refused_with_the_numbers_that_fit(replicas: int) -> None:
    with pytest.raises(ValueError, match=rf"replicas={replicas}: 8 ranks .* one of 1, 2, 4, 8, or"):
        count_shards(replicas, 8, 1)

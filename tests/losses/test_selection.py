import copy
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.losses import selection
from e3rl.losses.selection import select_top, token_draws

EVERYONE = torch.ones(5, dtype=torch.bool)


def marks(values, draws, eligible=EVERYONE, count=2) -> list[int]:
    chosen = select_top(torch.tensor(values), torch.tensor(draws), eligible, count)
    return chosen.nonzero()[:, 0].tolist()


def test_the_largest_are_marked():
    assert marks([0.5, -1.0, 2.0, 0.0, 1.0], [0.1] * 5) == [2, 4]


def test_equal_values_are_ordered_by_draw():
    assert marks([1.0, 1.0, 0.0, 1.0, 1.0], [0.3, 0.9, 0.99, 0.1, 0.5], count=3) == [0, 1, 4]


def test_only_eligible_ones_are_marked_and_all_of_them_where_they_are_few():
    eligible = torch.tensor([True, False, False, True, False])
    assert marks([0.0, 9.0, 9.0, 1.0, 9.0], [0.5] * 5, eligible, count=1) == [3]
    assert marks([0.0, 9.0, 9.0, 1.0, 9.0], [0.5] * 5, eligible, count=4) == [0, 3]


def test_none_are_marked_where_none_may_be():
    assert marks([1.0] * 5, [0.5] * 5, ~EVERYONE) == []
    assert marks([1.0] * 5, [0.5] * 5, count=0) == []


class Ranks:
    """Gathers over threads that stand for ranks."""

    def __init__(self, n: int) -> None:
        self.barrier = Barrier(n)
        self.given: dict[int, object] = {}

    def all_gather(self, item):
        self.given[get_ident()] = item
        self.barrier.wait(timeout=10)
        return list(self.given.values())


tokens = st.lists(
    st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 10**6), st.booleans()),
    min_size=1,
    max_size=12,
    unique_by=lambda token: token[1],
)


@given(tokens, st.integers(0, 8), st.data())
@settings(deadline=None, max_examples=40)
def test_ranks_together_mark_what_one_process_would(found, count, data):
    values, draws, eligible = (torch.tensor(column) for column in zip(*found, strict=True))
    draws = draws.double()
    alone = select_top(values, draws, eligible, count)
    assert int(alone.sum()) == min(count, int(eligible.sum()))
    cut = data.draw(st.integers(0, len(found)))
    ranks = Ranks(2)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(selection, "all_gather", ranks.all_gather)
        shares = [slice(0, cut), slice(cut, None)]
        parts = pool.map(lambda s: select_top(values[s], draws[s], eligible[s], count), shares)
        assert torch.equal(torch.cat(list(parts)), alone)


def test_draws_belong_to_the_rollout_not_to_its_place(make_batch):
    batch = make_batch(group_sizes=(2, 3))
    order = [3, 0, 4, 1, 2]
    turned = copy.deepcopy(batch)
    for name in ("group", "sample", "completion_mask"):
        setattr(turned, name, getattr(batch, name)[order])
    lengths = batch.completion_mask.sum(dim=1).tolist()
    own = token_draws(batch).split(lengths)
    torch.testing.assert_close(token_draws(turned), torch.cat([own[i] for i in order]))
    assert len(set(token_draws(batch).tolist())) == sum(lengths)
    batch.stream = (7, "train", 1)
    assert not torch.equal(token_draws(batch), torch.cat(own))

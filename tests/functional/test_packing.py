import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.packing import microbatches


def test_rows_are_cut_longest_first_so_that_padding_fits_the_budget():
    lengths = torch.tensor([3, 10, 4, 9, 2, 5])
    packs = microbatches(lengths, torch.tensor([0, 1, 2, 3, 4]), tokens_per_microbatch=20)
    assert [pack.rows.tolist() for pack in packs] == [[1, 3], [2, 0, 4]]


def test_a_rollout_longer_than_the_budget_stands_alone():
    packs = microbatches(torch.tensor([50, 3]), torch.arange(2), tokens_per_microbatch=10)
    assert [pack.rows.tolist() for pack in packs] == [[0], [1]]


def test_no_rows_make_no_micro_batch():
    assert microbatches(torch.tensor([5]), torch.tensor([], dtype=torch.int64), 10) == []


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 200), st.data())
def test_packs_cover_every_row_once_within_the_budget(lengths, budget, data):
    rows = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    packs = microbatches(torch.tensor(lengths), torch.tensor(rows, dtype=torch.int64), budget)
    assert sorted(row for pack in packs for row in pack.rows.tolist()) == sorted(rows)
    for pack in packs:
        longest = max(lengths[row] for row in pack.rows.tolist())
        assert len(pack.rows) == 1 or len(pack.rows) * longest <= budget
    firsts = [max(lengths[row] for row in pack.rows.tolist()) for pack in packs]
    assert firsts == sorted(firsts, reverse=True)

"""Rollouts laid end to end with each prompt once: what stands where, by hand and by brute force."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.packing import (
    KEYS_PER_TOKEN,
    RolloutLengths,
    pays_to_share,
    shared_microbatches,
)
from e3rl.functional.shared_prompts import Segments, SharedPrompts, share_prompts, take

# Two rollouts of the prompt 5 6 7, of 3 and 1 tokens, and one of the prompt 8 9.
TOKENS = torch.tensor(
    [[5, 6, 7, 1, 2, 3], [8, 9, 4, 4, 0, 0], [5, 6, 7, 2, 0, 0]],
)
SAMPLED = torch.tensor(
    [[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 0, 0]], dtype=torch.bool
)
GROUP = torch.tensor([3, 7, 3])


def test_a_layout_by_hand():
    layout = share_prompts(TOKENS, SAMPLED, GROUP)
    # Prompts 5 6 7 and 8 9, then what the completions put in: all but their last tokens.
    assert layout.tokens.tolist() == [5, 6, 7, 8, 9, 1, 2, 4]
    assert layout.position_ids.tolist() == [0, 1, 2, 0, 1, 3, 4, 2]
    assert layout.prompt_tokens == 5
    assert layout.prompt_of.tolist() == [0, 1, 0]
    # 1 is predicted by 7 (slot 2), 2 by 1, 3 by 2; 4 by 9, 4 by 4; the last 2 by 7 again.
    assert layout.states.tolist() == [2, 5, 6, 4, 7, 2]
    assert layout.completions is not None
    assert layout.completions.lengths.tolist() == [2, 1, 0]
    assert layout.mask is not None
    assert layout.mask.shape == (3, 1, 2, 3 + 2)
    assert layout.mask[1, 0].int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 0, 1, 1]]


def test_completions_of_one_token_each_need_their_prompts_only():
    single = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    layout = share_prompts(TOKENS[:, :4], single, GROUP)
    assert layout.tokens.tolist() == [5, 6, 7, 8, 9]
    assert layout.completions is None
    assert layout.states.tolist() == [2, 4, 2]


def test_rollouts_with_different_prompts_cannot_share_one():
    other = TOKENS.clone()
    other[2, 1] = 9
    with pytest.raises(ValueError, match="different prompts"):
        share_prompts(other, SAMPLED, GROUP)
    with pytest.raises(ValueError, match="different prompts"):
        share_prompts(TOKENS, SAMPLED.roll(-1, 1) & SAMPLED | SAMPLED[:, [5, *range(5)]], GROUP)


def segments_of(lengths: list[int]) -> tuple[Segments, torch.Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    values = torch.randn(sum(lengths), 2, generator=generator, dtype=torch.float64)
    return Segments.of(torch.tensor(lengths)), values


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any))
def test_what_is_spread_and_collected_is_what_it_was(lengths):
    segments, values = segments_of(lengths)
    rectangle = segments.spread(values)
    assert rectangle.shape == (len(lengths), max(lengths), 2)
    for row, run in enumerate(values.split(lengths)):
        assert torch.equal(rectangle[row, : len(run)], run)
    assert torch.equal(segments.collect(rectangle), values)


def test_gradients_of_moves_are_those_of_finite_differences():
    segments, values = segments_of([2, 0, 3])
    values.requires_grad_()
    weights = torch.randn(3, 3, 2, dtype=torch.float64)
    used = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]])[..., None]  # padding is never used
    assert torch.autograd.gradcheck(lambda x: segments.spread(x) * weights * used, values)
    rectangle = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(segments.collect, rectangle)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_sampled_token_is_predicted_from_the_tokens_before_it(data):
    """By following each state's own history through the layout."""
    groups = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=7))
    prompts = {g: data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)) for g in groups}
    answers = [data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)) for _ in groups]
    width = max(len(prompts[g]) + len(a) for g, a in zip(groups, answers, strict=True))
    tokens, sampled = torch.zeros(len(groups), width).long(), torch.zeros(len(groups), width) > 1
    for row, (g, answer) in enumerate(zip(groups, answers, strict=True)):
        line = prompts[g] + answer
        tokens[row, : len(line)] = torch.tensor(line)
        sampled[row, len(prompts[g]) : len(line)] = True
    layout = share_prompts(tokens, sampled, torch.tensor(groups))
    distinct = len(set(groups))
    assert len(layout.prompts.lengths) == distinct
    total = sum(len(prompts[g]) for g in set(groups)) + sum(len(a) - 1 for a in answers)
    assert len(layout.tokens) == len(layout.position_ids) == total
    for (row, column), state in zip(sampled.nonzero().tolist(), layout.states, strict=True):
        assert history(layout, int(state), row) == tokens[row, :column].tolist()


def history(layout: SharedPrompts, state: int, row: int) -> list[int]:
    """The tokens that a place of the layout stands for, itself the last: what it may look at."""
    prompt = int(layout.prompt_of[row])
    starts = (layout.prompts.lengths.cumsum(0) - layout.prompts.lengths).tolist()
    own = range(starts[prompt], starts[prompt] + int(layout.prompts.lengths[prompt]))
    if state < layout.prompt_tokens:
        return layout.tokens[own.start : state + 1].tolist()
    assert layout.completions is not None
    sizes = layout.completions.lengths
    start = layout.prompt_tokens + int(sizes[:row].sum())
    assert start <= state < start + int(sizes[row])
    found = [*own, *range(start, state + 1)]
    assert layout.position_ids[found].tolist() == list(range(len(found)))
    return layout.tokens[found].tolist()


def test_gradients_of_what_is_taken_often_are_summed_in_float32():
    values = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([2, 0, 2, 2])
    assert torch.equal(take(values, rows), values[rows])
    assert torch.autograd.gradcheck(lambda x: take(x, rows), values)
    coarse = torch.ones(1, 1, dtype=torch.bfloat16, requires_grad=True)
    # 1 + 1/512 is 1 in bfloat16, and so would be the sum of all 257.
    weights = torch.tensor([1.0] + [1 / 512] * 256, dtype=torch.bfloat16)[:, None]
    (take(coarse, torch.zeros(257).long()) * weights).sum().backward()
    assert coarse.grad is not None
    assert float(coarse.grad) == 1.5


# -- micro-batches


def lengths_of(*rollouts: tuple[int, int, int]) -> RolloutLengths:
    """Of (prompt, completion, group)."""
    prompt, completion, group = (torch.tensor(x) for x in zip(*rollouts, strict=True))
    return RolloutLengths(prompt + completion, prompt, group)


def test_groups_stay_together_and_those_with_long_completions_come_first():
    of = lengths_of((10, 3, 0), (10, 5, 1), (10, 3, 0), (10, 9, 1))
    rows = torch.arange(4)
    # 10 + 2 x 8 and 10 + 2 x 2 with the last tokens left out
    packs = shared_microbatches(of, rows, 26)
    assert [pack.rows.tolist() for pack in packs] == [[3, 1], [0, 2]]
    assert all(pack.shared for pack in packs)
    assert len(shared_microbatches(of, rows, 20 + 4 * 8)) == 1
    assert [len(p.rows) for p in shared_microbatches(of, rows, 1)] == [1, 1, 1, 1]
    assert shared_microbatches(of, rows[:0], 10) == []


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=12),
    st.integers(1, 200),
    st.data(),
)
def test_shared_micro_batches_cover_every_row_once_within_the_budget(shapes, budget, data):
    groups = data.draw(st.lists(st.integers(0, len(shapes) - 1), min_size=1, max_size=20))
    of = lengths_of(*((shapes[g][0], 1 + (shapes[g][1] * i) % 20, g) for i, g in enumerate(groups)))
    packs = shared_microbatches(of, torch.arange(len(groups)), budget)
    assert sorted(row for pack in packs for row in pack.rows.tolist()) == list(range(len(groups)))
    for pack in packs:
        prompts = {groups[row]: shapes[groups[row]][0] for row in pack.rows.tolist()}
        widest = int((of.total - of.prompt)[pack.rows].max()) - 1
        n = len(pack.rows)
        if n > 1:
            assert sum(prompts.values()) + n * widest <= budget
            assert n * (max(prompts.values()) + widest) <= KEYS_PER_TOKEN * budget


def test_sharing_pays_for_short_answers_and_not_for_long_ones():
    short = lengths_of(*((100, 20, 0) for _ in range(8)))
    alone = lengths_of((100, 20, 0), (100, 20, 1))
    long = lengths_of(*((10, 2000, 0) for _ in range(8)))
    for of, pays in ((short, True), (alone, False), (long, False)):
        rows = torch.arange(len(of.total))
        assert pays_to_share(of, rows, pairs_per_token=3000.0) == pays
    # 8 x 400 tokens against 300 + 8 x 99: less in the layers, more in attention, which decides here
    wide = lengths_of(*((10, 390, 0) for _ in range(8)))
    assert not pays_to_share(wide, torch.arange(8), pairs_per_token=1.0)
    even = lengths_of(*((300, 100, 0) for _ in range(8)))
    assert pays_to_share(even, torch.arange(8), pairs_per_token=1e9)

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.aggregation import Aggregation, Totals, prompt_factors, rollout_weights

# Two prompts: three completions of 1, 2 and 3 tokens, and one of 4.
LENGTHS = torch.tensor([1, 2, 3, 4])
SIZES = torch.tensor([3, 3, 3, 1])  # of each completion's group
TOTALS = Totals(tokens=10, rollouts=4)
FACTORS = prompt_factors(SIZES, mean_size=2)


def weights(mode, by_prompt=False, **options):
    factors = FACTORS if by_prompt or mode == "prompt_mean" else None
    return rollout_weights(mode, LENGTHS, TOTALS, factors, **options)


@pytest.mark.parametrize(
    ("mode", "by_sample", "by_prompt"),
    [
        # (N/P)/n is 2/3 for the first prompt's rollouts and 2 for the second's.
        ("token_mean", [1 / 10] * 4, [1 / 15, 1 / 15, 1 / 15, 1 / 5]),
        ("sequence_mean", [1 / 4, 1 / 8, 1 / 12, 1 / 16], [1 / 6, 1 / 12, 1 / 18, 1 / 8]),
        ("sequence_sum", [1 / 4] * 4, [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
        ("constant", [1 / 32] * 4, [1 / 48, 1 / 48, 1 / 48, 1 / 16]),
        ("prompt_mean", [1 / 6, 1 / 12, 1 / 18, 1 / 8], [1 / 6, 1 / 12, 1 / 18, 1 / 8]),
    ],
)
def test_each_mode_worked_by_hand(mode, by_sample, by_prompt):
    torch.testing.assert_close(weights(mode, max_length=8), torch.tensor(by_sample))
    weighted = weights(mode, by_prompt=True, max_length=8)
    torch.testing.assert_close(weighted, torch.tensor(by_prompt))


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "prompt_mean"])
def test_a_constant_token_loss_is_its_own_mean(mode):
    assert (weights(mode) * LENGTHS).sum().item() == pytest.approx(1.0)


def test_by_prompt_every_prompt_has_the_same_say():
    by_prompt = weights("sequence_mean", by_prompt=True) * LENGTHS
    assert by_prompt[:3].sum().item() == pytest.approx(0.5)
    assert by_prompt[3].item() == pytest.approx(0.5)


def test_equal_group_sizes_make_the_prompt_weight_irrelevant():
    factors = prompt_factors(torch.tensor([2, 2, 2, 2]), mean_size=2)
    for mode in get_args(Aggregation):
        weighted = rollout_weights(mode, LENGTHS, TOTALS, factors, max_length=8)
        plain = factors if mode == "prompt_mean" else None
        torch.testing.assert_close(
            weighted, rollout_weights(mode, LENGTHS, TOTALS, plain, max_length=8)
        )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from(get_args(Aggregation)),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_micro_batches_add_up_to_the_full_batch(rollouts, mode, by_prompt, random):
    group = torch.tensor([g for g, _ in rollouts])
    lengths = torch.tensor([t for _, t in rollouts])
    sizes = torch.bincount(group, minlength=4)
    totals = Totals(int(lengths.sum()), len(rollouts))
    factors = prompt_factors(sizes[group], len(rollouts) / int((sizes > 0).sum()))
    by_prompt = by_prompt or mode == "prompt_mean"
    losses = torch.randn(len(rollouts), generator=torch.Generator().manual_seed(0))

    def objective(rows):
        w = rollout_weights(
            mode, lengths[rows], totals, factors[rows] if by_prompt else None, max_length=9
        )  # fmt: skip
        return (w * lengths[rows] * losses[rows]).sum()

    order = random.sample(range(len(rollouts)), len(rollouts))
    cut = random.randint(0, len(order))
    whole = objective(torch.arange(len(rollouts)))
    parts = [
        objective(torch.tensor(rows, dtype=torch.int64)) for rows in (order[:cut], order[cut:])
    ]
    torch.testing.assert_close(sum(parts), whole, atol=1e-6, rtol=1e-5)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=10))
@settings(deadline=None, max_examples=40)
def test_the_prompt_factors_sum_to_the_number_of_rollouts(sizes):
    own = torch.repeat_interleave(torch.tensor(sizes), torch.tensor(sizes))
    factors = prompt_factors(own, len(own) / len(sizes))
    assert factors.sum().item() == pytest.approx(len(own))


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("mean", {}, "mode='mean' must be one of"),
        ("constant", {}, "divides by max_length, got None"),
    ],
)
def test_unknown_settings_are_refused(mode, options, message):
    with pytest.raises(ValueError, match=message):
        weights(mode, **options)


def test_empty_rollouts_and_impossible_totals_are_refused():
    with pytest.raises(ValueError, match="at least one sampled token"):
        rollout_weights("token_mean", torch.tensor([0]), TOTALS)
    with pytest.raises(ValueError, match="1 <= rollouts <= tokens"):
        Totals(tokens=3, rollouts=4)


def test_a_mean_over_prompts_without_their_factors_is_refused():
    with pytest.raises(ValueError, match="'prompt_mean' needs factors"):
        rollout_weights("prompt_mean", LENGTHS, TOTALS)

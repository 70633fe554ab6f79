from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.functional.aggregation import Aggregation, Totals, rollout_weights

# Two prompts: three completions of 1, 2 and 3 tokens, and one of 4.
LENGTHS = torch.tensor([1, 2, 3, 4])
GROUP = torch.tensor([0, 0, 0, 1])
SIZES = torch.tensor([3, 1])
TOTALS = Totals(tokens=10, rollouts=4, prompts=2)


def weights(mode, rows=slice(None), **options):
    return rollout_weights(mode, LENGTHS[rows], GROUP[rows], SIZES, TOTALS, **options)


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
    weighted = weights(mode, max_length=8, prompt_weight="prompt")
    torch.testing.assert_close(weighted, torch.tensor(by_prompt))


@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "prompt_mean"])
def test_a_constant_token_loss_is_its_own_mean(mode):
    assert (weights(mode) * LENGTHS).sum().item() == pytest.approx(1.0)


def test_by_prompt_every_prompt_has_the_same_say():
    by_prompt = weights("sequence_mean", prompt_weight="prompt") * LENGTHS
    assert by_prompt[:3].sum().item() == pytest.approx(0.5)
    assert by_prompt[3].item() == pytest.approx(0.5)


def test_equal_group_sizes_make_the_prompt_weight_irrelevant():
    for mode in get_args(Aggregation):
        plain, weighted = (
            rollout_weights(
                mode,
                LENGTHS,
                torch.tensor([0, 1, 0, 1]),
                torch.tensor([2, 2]),
                TOTALS,
                prompt_weight=prompt_weight,
                max_length=8,
            )
            for prompt_weight in ("sample", "prompt")
        )
        torch.testing.assert_close(plain, weighted)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from(get_args(Aggregation)),
    st.sampled_from(["sample", "prompt"]),
    st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=60)
def test_micro_batches_add_up_to_the_full_batch(rollouts, mode, prompt_weight, random):
    group = torch.tensor([g for g, _ in rollouts])
    lengths = torch.tensor([t for _, t in rollouts])
    sizes = torch.bincount(group, minlength=4)
    totals = Totals(int(lengths.sum()), len(rollouts), int((sizes > 0).sum()))
    losses = torch.randn(len(rollouts), generator=torch.Generator().manual_seed(0))

    def objective(rows):
        w = rollout_weights(
            mode, lengths[rows], group[rows], sizes, totals,
            prompt_weight=prompt_weight, max_length=9,
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
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    n = len(group)
    factors = rollout_weights(
        "sequence_sum",
        torch.ones(n, dtype=torch.int64),
        group,
        torch.tensor(sizes),
        Totals(n, n, len(sizes)),
        prompt_weight="prompt",
    )
    assert (factors * n).sum().item() == pytest.approx(n, rel=1e-5)


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("mean", {}, "mode='mean' must be one of"),
        ("token_mean", {"prompt_weight": "row"}, "prompt_weight='row'"),
        ("constant", {}, "divides by max_length, got None"),
    ],
)
def test_unknown_settings_are_refused(mode, options, message):
    with pytest.raises(ValueError, match=message):
        weights(mode, **options)


def test_empty_rollouts_and_impossible_totals_are_refused():
    with pytest.raises(ValueError, match="at least one sampled token"):
        rollout_weights("token_mean", torch.tensor([0]), torch.tensor([0]), SIZES, TOTALS)
    with pytest.raises(ValueError, match="prompts <= rollouts <= tokens"):
        Totals(tokens=3, rollouts=4, prompts=2)

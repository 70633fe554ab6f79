"""Policies whose rollouts share their prompts in a pass: the same numbers from fewer tokens."""

import copy
from pathlib import Path

import pytest
import torch

from e3rl.functional.flops import PassCounts
from e3rl.functional.packing import Pack
from e3rl.policy import shared_attention
from e3rl.policy.policy import Policy
from e3rl.training.forward import cut, forward
from finished_batches import reference_logprobs
from small_models import with_model
from update_harness import exact_copy, fit, gap, make_loss, make_module, size

pytestmark = pytest.mark.end_to_end

FAMILIES = (
    "gpt2",
    "llama",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "mistral",
    "phi3",
    "olmo2",
    "qwen3_moe",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_are_those_of_rollouts_alone(policy, make_batch, family):
    own = with_model(policy, family)
    batch = make_batch(group_sizes=(4, 1, 3))
    assert own.sharing is not None
    micro = forward(own, batch, Pack(torch.arange(8), shared=True))
    wanted = reference_logprobs(own, batch)[batch.completion_mask].float()
    torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("known_by", ["layer types", "modules", "numbers"])
def test_a_model_whose_tokens_meet_outside_of_attention_shares_nothing(
    policy, make_batch, known_by, monkeypatch
):
    """Convolutions: known by their names, by what they are, and at last by their numbers."""
    own = with_model(policy, "lfm2", layer_types=["conv", "full_attention"])
    if known_by != "layer types":
        known = shared_attention.KNOWN | {"conv"}
        monkeypatch.setattr("e3rl.policy.shared_attention.KNOWN", known)
    if known_by == "numbers":
        monkeypatch.setattr(torch.nn, "Conv1d", torch.nn.Bilinear)
    batch = make_batch(group_sizes=(4, 4))
    assert own.sharing is None
    assert not any(pack.shared for pack in cut(own, batch, torch.arange(8), 10**6))
    micro = forward(own, batch, Pack(torch.arange(8)))
    wanted = reference_logprobs(own, batch)[batch.completion_mask].float()
    torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="shares no prompts"):
        forward(own, batch, Pack(torch.arange(8), shared=True))


def test_it_can_be_switched_off_and_other_attention_is_left_alone(policy, make_batch):
    batch = make_batch(group_sizes=(8,))
    assert all(pack.shared for pack in cut(Policy(), batch, torch.arange(8), 10**6))
    for own in (Policy(share_prompts=False), Policy(attention="eager")):
        assert own.sharing is None
        assert not any(pack.shared for pack in cut(own, batch, torch.arange(8), 10**6))


def test_rollouts_beyond_a_sliding_window_do_not_share(policy, make_batch):
    batch = make_batch(group_sizes=(8,))
    longest = int(batch.lengths.max())
    for window, shared in ((longest, True), (longest - 1, False)):
        own = with_model(policy, "mistral", sliding_window=window)
        assert own.sharing is not None
        assert own.sharing.longest == window
        packs = cut(own, batch, torch.arange(8), 10**6)
        assert all(pack.shared == shared for pack in packs)
        micro = forward(own, batch, packs[0])
        wanted = reference_logprobs(own, batch)[packs[0].rows]
        wanted = wanted[batch.completion_mask[packs[0].rows]].float()
        torch.testing.assert_close(micro.logprobs, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokens_per_microbatch": 60},
        {"minibatches": 2, "inner_epochs": 2},
        {"loss": make_loss(entropy_coef=0.01, kl_coef=0.1), "skip_zero_advantage": "off"},
    ],
    ids=["whole", "cut", "minibatches", "every term"],
)
def test_an_update_is_the_same_with_and_without(policy, make_batch, settings):
    """Ragged groups and a temperature of each rollout's own, in float64."""
    exact, batch = exact_copy(policy), make_batch(group_sizes=(8, 3, 1, 6))
    apart = copy.deepcopy(exact)
    apart.share_prompts = False
    shared, unshared = (fit(make_module(own, **settings), [batch]) for own in (exact, apart))
    assert shared.module.policy.sharing is not None
    assert unshared.module.policy.sharing is None
    for one, other in zip(shared.gradients, unshared.gradients, strict=True):
        assert gap(one, other) < 1e-12 * size(other)


@pytest.mark.parametrize("settings", [{}, {"tokens_per_microbatch": 60}], ids=["whole", "cut"])
def test_in_float32_either_way_is_as_far_from_the_exact_gradient(policy, make_batch, settings):
    """By the norm of all differences; ragged groups and temperatures of their own included."""
    apart, batch = copy.deepcopy(policy), make_batch(group_sizes=(8, 3, 1, 6))
    apart.share_prompts = False
    exact, shared, unshared = (
        fit(make_module(own, **settings), [batch]).gradients[0]
        for own in (exact_copy(policy), policy, apart)
    )
    zero = {name: torch.zeros_like(value) for name, value in exact.items()}
    errors = [distance(found, exact) / distance(exact, zero) for found in (shared, unshared)]
    assert distance(shared, unshared) > 0
    assert errors[1] < 2e-6
    assert errors[0] < 1.5 * errors[1]


def distance(first, second):
    """Norm of the difference of all gradients."""
    squares = ((first[n].double() - second[n].double()).square().sum() for n in first)
    return float(sum(squares).sqrt())


def test_an_update_is_the_same_where_activations_are_recomputed(policy, make_batch, tmp_path: Path):
    batch = make_batch(group_sizes=(8, 3))
    kept, recomputed = (
        fit(make_module(Policy(gradient_checkpointing=on)), [batch]).gradients[0]
        for on in (False, True)
    )
    assert gap(kept, recomputed) < 1e-6 * size(kept)


def test_the_saved_model_and_its_configuration_do_not_know_of_it(tmp_path: Path):
    own = Policy()
    before = own.model.config.to_json_string()
    assert own.sharing is not None
    assert own.model.config.to_json_string() == before
    own.save(tmp_path)
    again = Policy(str(tmp_path))
    assert again.sharing is not None


def test_tokens_and_pairs_are_counted_as_they_went_through(policy, make_batch):
    batch = make_batch(group_sizes=(4, 1))
    prompt = batch.completion_mask.int().argmax(dim=1)
    layouts = {True: batch.prompt_tokens, False: [batch.prompt_tokens[g] for g in batch.group]}
    for shared, prompts in layouts.items():
        batch.passes = PassCounts()
        forward(policy, batch, Pack(torch.arange(5), shared))
        cut_off = 5 if shared else 0  # last tokens of completions, which predict nothing
        own = (batch.lengths - prompt).sum() - cut_off
        tokens, pairs, logits = batch.passes.with_gradient.tolist()
        assert tokens == sum(map(len, prompts)) + own
        assert logits == batch.completion_mask.sum()
        of_prompts = sum(n * (n + 1) / 2 for n in map(len, prompts))
        ends = batch.lengths - int(shared)  # the last token that goes in
        of_completions = sum(
            sum(range(int(start) + 1, int(end) + 1))
            for start, end in zip(prompt, ends, strict=True)
        )
        assert pairs == of_prompts + of_completions

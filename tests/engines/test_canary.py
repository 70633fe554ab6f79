"""The canary: what it samples, that rounding does not stop it, and that every mistake does."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Cache

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.canary import (
    ROUNDING,
    EngineMismatchError,
    canary_gaps,
    canary_requests,
    check_canary,
    expected_rounding,
    first_logits,
    gaps_from,
    largest_quartile,
)
from e3rl.engines.transformers import TransformersEngine
from e3rl.policy.policy import Policy
from engine_requests import many

NextStates = Callable[[Tensor], Tensor]


def test_prompts_are_fixed_span_a_block_that_they_share_and_end_differently(policy):
    asked = canary_requests(policy, 32, 256, temperature=1.3, tokens=8)
    assert asked == canary_requests(policy, 32, 256, temperature=1.3, tokens=8)
    assert all(0 <= t < policy.vocabulary_size for r in asked for t in r.prompt_tokens)
    assert [r.temperature for r in asked] == [1.3] * 4 + [2.0] * 4
    assert [r.max_new_tokens for r in asked] == [2] * 8
    assert {len(r.prompt_tokens) for r in asked} == {40}
    assert len({r.prompt_tokens[:32] for r in asked}) == 2
    assert len({r.prompt_tokens for r in asked}) == len({r.seed for r in asked}) == 8
    assert [(r.prompt, r.sample) for r in asked] == [(p, s) for p in range(2) for s in range(4)]


def test_greedy_rollouts_are_checked_at_the_temperature_that_scores_them(policy):
    greedy = canary_requests(policy, 32, 256, temperature=0.0, tokens=8)
    assert greedy == canary_requests(policy, 32, 256, temperature=1.0, tokens=8)


def test_prompts_fit_into_a_short_model(policy):
    for r in canary_requests(policy, 128, 40, temperature=1.0, tokens=32):
        assert (len(r.prompt_tokens), r.max_new_tokens) == (32, 8)
    for r in canary_requests(policy, 32, 44, temperature=1.0, tokens=32):
        assert (len(r.prompt_tokens), r.max_new_tokens) == (36, 8)
    for r in canary_requests(policy, 32, 4, temperature=1.0, tokens=32):
        assert (len(r.prompt_tokens), r.max_new_tokens) == (1, 3)


def test_gaps_are_distances_to_the_policys_own_log_probs_times_the_temperature(policy):
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 0)
    taus = (0.7, 1.2)
    rollouts = [
        dataclasses.replace(r, prompt=place)
        for place, tau in enumerate(taus)
        for r in engine.generate(many(policy, 1, tau=tau))
    ]
    assert torch.cat(canary_gaps(policy, rollouts)).max() < 1e-4
    shifted = [
        dataclasses.replace(r, logprobs=tuple(x - 0.25 for x in r.logprobs)) for r in rollouts
    ]
    for place, (gaps, tau) in enumerate(zip(canary_gaps(policy, shifted[::-1]), taus, strict=True)):
        assert len(gaps) == sum(len(r.tokens) for r in rollouts if r.prompt == place)
        assert torch.allclose(gaps, torch.tensor(0.25 * tau), atol=1e-4)


def test_what_first_tokens_are_held_to_outlives_the_weights(policy):
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 0)
    asked = canary_requests(policy, 8, 64, 0.7, tokens=8, completions=8)
    assert [r.max_new_tokens for r in asked] == [1] * 16
    trained = copy.deepcopy(policy)
    logits = first_logits(trained, asked)
    assert logits.shape == (16, policy.vocabulary_size)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.mul_(1.05)
    sampled = sorted(engine.generate(asked), key=lambda r: (r.prompt, r.sample))
    gaps = gaps_from(logits, sampled)
    assert [len(each) for each in gaps] == [8, 8]
    assert torch.cat(gaps).max() < 1e-4
    assert largest_quartile(gaps_from(first_logits(trained, asked), sampled)) > 1e-3
    for one, other in zip(gaps, canary_gaps(policy, sampled), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    with pytest.raises(RuntimeError, match="15 tokens where 16 were due"):
        gaps_from(logits, sampled[:-1])


def test_a_quarter_of_the_tokens_counts_and_one_far_off_does_not():
    few = torch.tensor([9.0, *[0.0] * 7])
    check_canary([few, few], 1e-2, 4)
    quarter = torch.tensor([0.5, 0.1, *[0.0] * 6])
    assert largest_quartile([few, quarter]) == pytest.approx(0.1)
    with pytest.raises(EngineMismatchError, match=r"version 4.* 0\.1 nats and more, by up to 9, "):
        check_canary([few, quarter], 1e-2, 4)
    assert largest_quartile([torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])]) == pytest.approx(0.4)


def test_a_gap_that_is_no_number_is_an_error():
    with pytest.raises(EngineMismatchError, match="differ by nan"):
        check_canary([torch.zeros(8), torch.tensor([*[0.0] * 7, torch.nan])], 1e-2, 4)


def test_the_coarsest_rounding_counts_and_gpus_may_round_float32_more():
    assert expected_rounding(["float32"], on_cpu=True).tolerance == 1e-3
    assert expected_rounding(["float32"], on_cpu=False) == ROUNDING["float16"]
    mixed = expected_rounding(["float32", "bfloat16"], on_cpu=True)
    assert mixed == ROUNDING["bfloat16"]


# Root mean squares of gaps at temperature 1, nats: published of trainers beside vLLM in bfloat16
# (Qwen2.5-7B), measured of SmolLM2-135M on a CPU; float16 and TF32 round to 3 bits more.
PUBLISHED, MEASURED = 0.039, 0.082
HEALTHY = {
    "published bfloat16": ("bfloat16", PUBLISHED),
    "measured bfloat16": ("bfloat16", MEASURED),
    "measured float16": ("float16", MEASURED / 8),
    "emulated TF32": ("tf32", MEASURED / 8),
    "float32": ("float32", 1e-5),
    "emulated float8": ("float8", 0.39),
}


@pytest.mark.parametrize("tails", ["laplace", "student"])
@pytest.mark.parametrize("case", HEALTHY)
def test_ten_thousand_healthy_syncs_never_stop(case: str, tails: str) -> None:
    """Two temperatures on each of 8 ranks; one's rounding is up to 1.6 times that of others."""
    name, rms = HEALTHY[case]
    rounding, rng = ROUNDING[name], np.random.default_rng(1)
    shape = (10_000, 16, rounding.tokens)
    if tails == "laplace":
        gaps = rng.laplace(scale=rms / np.sqrt(2), size=shape)
    else:  # three degrees of freedom: variance 3, and single gaps of twenty times the rms
        gaps = rng.standard_t(3, size=shape) * rms / np.sqrt(3)
    of_groups = rng.uniform(0.4, 1.6, size=(*shape[:2], 1))
    gaps = np.abs(gaps * of_groups / np.sqrt(1.12))  # 1.12: the mean square of those factors
    assert gaps.max(axis=(1, 2)).mean() > 4 * rms  # the largest gap is no measure
    quartiles = np.sort(gaps, axis=2)[..., -(rounding.tokens // 4)]
    assert quartiles.max() < rounding.tolerance


# -- mistakes, on tiny policies: what an engine samples that makes them


def sampled(
    next_logits: Callable[[Tensor], Tensor], requests: list[RolloutRequest]
) -> list[Rollout]:
    """Rollouts of an engine whose logits (R, V) of the next tokens follow from all before, (R, t);
    of R requests with equally long prompts and completions."""
    ids = torch.tensor([r.prompt_tokens for r in requests])
    width, (length,) = ids.shape[1], {r.max_new_tokens for r in requests}
    generators = [torch.Generator().manual_seed(r.seed) for r in requests]
    temperatures = torch.tensor([[r.temperature] for r in requests])
    logprobs = []
    for _ in range(length):
        scores = torch.log_softmax(next_logits(ids).float() / temperatures, dim=-1)
        pairs = zip(scores.exp(), generators, strict=True)
        chosen = torch.stack([torch.multinomial(p, 1, generator=g) for p, g in pairs])
        ids = torch.cat([ids, chosen], dim=1)
        logprobs.append(scores.gather(1, chosen))
    rollouts = []
    for r, row, known in zip(requests, ids.tolist(), torch.cat(logprobs, 1).tolist(), strict=True):
        given = (r.prompt, r.sample, r.prompt_tokens, tuple(row[width:]), tuple(known))
        rollouts.append(Rollout(*given, r.temperature, truncated=True, text="", policy_version=0))
    return rollouts


def last_states(
    decoder: torch.nn.Module, cache: Cache | None = None, cached: int = 0
) -> NextStates:
    """Hidden states (R, E) of the last of all tokens (R, t), of which `cached` are in `cache`."""

    def next_states(ids: Tensor) -> Tensor:
        nonlocal cache, cached
        out = decoder(ids[:, cached:], past_key_values=cache, use_cache=True)
        cache, cached = out.past_key_values, ids.shape[1]
        return out.last_hidden_state[:, -1]

    return next_states


def last_logits(policy: Policy) -> Callable[[Tensor], Tensor]:
    states, head = last_states(policy.model.get_decoder()), policy.model.get_output_embeddings()
    return lambda ids: head(states(ids))


def unsent(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The engine still has the weights that it was built with."""
    torch.manual_seed(1)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    return last_logits(Policy(random_weights=True, dtype=dtype))


def stale(policy: Policy) -> Callable[[Tensor], Tensor]:
    """It has the weights from before many updates."""
    return last_logits(earlier(policy))


def earlier(policy: Policy) -> Policy:
    torch.manual_seed(1)
    other = copy.deepcopy(policy)
    for parameter in other.parameters():
        if parameter.dim() == 2:
            parameter.add_(0.15 * parameter.std() * torch.randn_like(parameter))
    return other


def unsent_head(policy: Policy) -> Callable[[Tensor], Tensor]:
    """It takes all but the head, as where a tied one is not sent beside the embedding."""
    head, states = (
        policy.model.get_output_embeddings().weight,
        last_states(policy.model.get_decoder()),
    )
    torch.manual_seed(1)
    packed = head.std() * torch.randn_like(head)
    return lambda ids: states(ids) @ packed.T


def stale_head(policy: Policy) -> Callable[[Tensor], Tensor]:
    """It keeps a copy of the head, which was half as large."""
    packed = policy.model.get_output_embeddings().weight / 2
    states = last_states(policy.model.get_decoder())
    return lambda ids: states(ids) @ packed.T


def rolled_layers(policy: Policy) -> Callable[[Tensor], Tensor]:
    """Layers arrive in the places of their neighbours."""
    other = copy.deepcopy(policy)
    own = policy.model.get_decoder().layers
    for n, layer in enumerate(other.model.get_decoder().layers):
        layer.load_state_dict(own[(n + 1) % len(own)].state_dict())
    return last_logits(other)


def exchanged_layers(policy: Policy) -> Callable[[Tensor], Tensor]:
    """The first two layers arrive in each other's places."""
    other = copy.deepcopy(policy)
    own = policy.model.get_decoder().layers
    for to, origin in ((0, 1), (1, 0)):
        other.model.get_decoder().layers[to].load_state_dict(own[origin].state_dict())
    return last_logits(other)


def stale_cache(policy: Policy) -> Callable[[Tensor], Tensor]:
    """Keys and values of the prompt's first block are those of earlier weights."""
    before, head = earlier(policy).model.get_decoder(), policy.model.get_output_embeddings()
    states: NextStates | None = None

    def next_logits(ids: Tensor) -> Tensor:
        nonlocal states
        if states is None:
            cache = before(ids[:, :32], use_cache=True).past_key_values
            states = last_states(policy.model.get_decoder(), cache, 32)
        return head(states(ids))

    return next_logits


def ignored_temperature(policy: Policy) -> Callable[[Tensor], Tensor]:
    """It samples at temperature 1, whatever was asked for: see `rollouts_of`."""
    return last_logits(policy)


MISTAKES = (
    *(unsent, stale, unsent_head, stale_head, rolled_layers, exchanged_layers, stale_cache),
    ignored_temperature,
)


def rollouts_of(
    engine: Callable[[Policy], Callable[[Tensor], Tensor]], policy: Policy, tokens: int
) -> list[Rollout]:
    """What the canary gets from an engine that makes a mistake."""
    asked = canary_requests(policy, 32, 256, temperature=1.0, tokens=tokens)
    sampling = asked
    if engine is ignored_temperature:
        sampling = [dataclasses.replace(r, temperature=1.0) for r in asked]
    return [
        dataclasses.replace(rollout, temperature=r.temperature)
        for rollout, r in zip(sampled(engine(policy), sampling), asked, strict=True)
    ]


@pytest.mark.end_to_end
@pytest.mark.parametrize("path", ["embedded", "embedded_arithmetic"])
@torch.no_grad()
def test_among_float8_whatever_did_not_arrive_stops(path: str) -> None:
    policy, rounding = Policy(path), ROUNDING["float8"]
    for mistake in (unsent, unsent_head, stale_head, rolled_layers, exchanged_layers):
        gaps = canary_gaps(policy, rollouts_of(mistake, policy, rounding.tokens))
        with pytest.raises(EngineMismatchError):
            check_canary(gaps, rounding.tolerance, 1)


@torch.no_grad()
def test_what_is_sampled_from_here_is_the_models_own(policy) -> None:
    """Token after token with a cache, and the whole text at once."""
    next_logits = last_logits(policy)
    ids = torch.arange(24).reshape(2, 12) + 4
    for length in (5, 6, 7, 12):
        whole = policy.model(ids[:, :length], use_cache=False).logits[:, -1]
        assert torch.allclose(next_logits(ids[:, :length]), whole, atol=1e-5)


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("held", [False, True])
@torch.no_grad()
def test_in_bfloat16_what_is_stale_stops_whatever_it_was(
    held: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the policy's logits of first tokens are all that there is to compare with."""
    policy, (tolerance, tokens) = Policy(dtype="bfloat16"), astuple(ROUNDING["bfloat16"])
    seeded = torch.manual_seed
    monkeypatch.setattr(torch, "manual_seed", lambda n: seeded(n + 100 * seed))
    asked = canary_requests(policy, 32, 256, 1.0, tokens, tokens if held else None)
    logits = first_logits(policy, asked) if held else None
    for mistake in (last_logits, stale, stale_cache, unsent_head):
        rollouts = sampled(mistake(policy), asked)
        gaps = canary_gaps(policy, rollouts) if logits is None else gaps_from(logits, rollouts)
        if mistake is last_logits:
            check_canary(gaps, tolerance, 1)
            continue
        with pytest.raises(EngineMismatchError):
            check_canary(gaps, tolerance, 1)


@pytest.mark.parametrize("path", ["embedded", "embedded_arithmetic"])
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@torch.no_grad()
def test_every_mistake_stops_and_none_does_not(precision: str, path: str) -> None:
    """In TF32's tolerance too, though a CPU computes float32 as it is: a wider net."""
    policy = Policy(path, dtype="float32" if precision == "tf32" else precision)
    tolerance, tokens = ROUNDING[precision].tolerance, ROUNDING[precision].tokens
    check_canary(canary_gaps(policy, rollouts_of(last_logits, policy, tokens)), tolerance, 1)
    for mistake in MISTAKES:
        gaps = canary_gaps(policy, rollouts_of(mistake, policy, tokens))
        with pytest.raises(EngineMismatchError):
            check_canary(gaps, tolerance, 1)

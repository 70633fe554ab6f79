import copy
import dataclasses
from dataclasses import replace

import numpy as np
import pytest
import torch

from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import CROWDED, InverseCdfSampler, TransformersEngine
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed
from engine_requests import (
    PROMPTS,
    by_place,
    cut_at_stop,
    largest_gap,
    largest_gap_to_the_nucleus,
    many,
    request,
    stopping,
    trainer_logprobs,
    truncated,
)
from small_models import with_model

pytestmark = pytest.mark.end_to_end


@pytest.fixture
def engine(policy):
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 3)
    return engine


@pytest.mark.parametrize("tau", [0.6, 1.0, 1.4])
def test_log_probs_are_the_policys_own_at_the_sampling_temperature(policy, engine, tau):
    rollouts = list(engine.generate(many(policy, tau=tau)))
    assert len(rollouts) == 4 * len(PROMPTS)
    assert largest_gap(policy, rollouts) < 1e-4
    assert {r.temperature for r in rollouts} == {tau}


def test_each_rollout_has_its_own_temperature(policy, engine):
    requests = [request(policy, p, s, tau=(0.6, 1.0, 1.4)[s]) for p in range(5) for s in range(3)]
    for r in engine.generate(requests):
        assert r.temperature == (0.6, 1.0, 1.4)[r.sample]
        assert torch.allclose(torch.tensor(r.logprobs), trainer_logprobs(policy, r), atol=1e-4)


def test_tokens_do_not_depend_on_what_else_is_in_the_call(policy, engine):
    requests = many(policy)
    together = by_place(engine.generate(requests))
    turned = by_place(engine.generate(requests[::-1]))
    few = TransformersEngine(rows_per_call=3, progress=False)
    few.sync(policy, 3)
    split = by_place(few.generate(requests))
    alone = by_place(r for one in requests[:6] for r in engine.generate([one]))
    assert turned.keys() == split.keys() == together.keys()
    for other in (turned, split, alone):
        for place, rollout in other.items():
            assert rollout.tokens == together[place].tokens
            assert rollout.logprobs == pytest.approx(together[place].logprobs, abs=1e-4)


def test_a_seed_repeats_its_tokens_and_another_seed_draws_others(policy, engine):
    first, again = (by_place(engine.generate(many(policy))) for _ in range(2))
    other = by_place(engine.generate(many(policy, seed=1)))
    assert first == again
    assert sum(first[place].tokens != other[place].tokens for place in first) > 10


def test_temperature_0_takes_the_most_likely_token_and_ignores_the_seed(policy, engine):
    first = by_place(engine.generate(many(policy, 1, tau=0.0)))
    other = by_place(engine.generate(many(policy, 1, tau=0.0, seed=1)))
    assert first == other
    for rollout in first.values():
        ids = torch.tensor([rollout.prompt_tokens + rollout.tokens])
        with torch.no_grad():
            best = policy.model(input_ids=ids).logits[0].argmax(dim=-1)
        start = len(rollout.prompt_tokens)
        assert best[start - 1 : -1].tolist() == list(rollout.tokens)
        assert torch.allclose(
            torch.tensor(rollout.logprobs), trainer_logprobs(policy, rollout), atol=1e-4
        )


def test_completions_end_with_the_end_token_or_are_marked_as_truncated(policy, engine):
    rollouts = list(engine.generate(many(policy, limit=12)))
    for rollout in rollouts:
        ended = rollout.tokens[-1] == policy.eos_id
        assert rollout.truncated is not ended
        assert policy.eos_id not in rollout.tokens[:-1]
        assert len(rollout.tokens) == 12 if rollout.truncated else len(rollout.tokens) <= 12
        assert len(rollout.logprobs) == len(rollout.tokens)
        assert "<eos>" not in rollout.text
        assert rollout.policy_version == 3
    assert {r.truncated for r in rollouts} == {True, False}


def test_each_request_has_its_own_length_limit(policy, engine):
    full = by_place(engine.generate(many(policy, limit=24)))
    limits = {place: 1 + i % 7 for i, place in enumerate(full)}
    cut = engine.generate(
        [dataclasses.replace(r, max_new_tokens=limits[r.prompt, r.sample]) for r in many(policy)]
    )
    for place, rollout in by_place(cut).items():
        assert rollout.tokens == full[place].tokens[: limits[place]]
        assert rollout.truncated == (policy.eos_id not in rollout.tokens)


def test_tokens_are_drawn_with_the_probabilities_of_the_softmax(policy, engine):
    n, tau = 2000, 1.2
    prompt = request(policy, 0, 0, tau=tau, limit=1)
    draws = engine.generate(
        [dataclasses.replace(prompt, sample=i, seed=derive_seed("chi2", i)) for i in range(n)]
    )
    counts = np.bincount([r.tokens[0] for r in draws], minlength=policy.vocabulary_size)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.tensor([prompt.prompt_tokens])).logits[0, -1]
    expected = n * torch.softmax(logits.double() / tau, dim=-1).numpy()
    common = expected >= 5
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    chi2 = ((observed - wanted) ** 2 / wanted).sum()
    assert common.sum() >= 5
    degrees = len(wanted) - 1
    assert chi2 < degrees + 4 * np.sqrt(2 * degrees)  # about four standard deviations


def test_a_token_is_the_inverse_cumulative_probability_of_its_uniform_number(policy):
    requests = many(policy, 8, tau=0.7)
    logits = torch.randn(len(requests), 12, generator=torch.Generator().manual_seed(0))
    logits[:, 3] = -torch.inf  # may never be drawn
    sampler = InverseCdfSampler(requests, torch.device("cpu"))
    for step in range(3):
        chosen, _ = sampler.draw(logits, torch.arange(len(requests)))
        for row, r in enumerate(requests):
            u = np.random.Generator(np.random.Philox(r.seed)).random(step + 1)[step]
            weights = np.exp(logits[row].double().numpy() / 0.7)
            place = np.searchsorted(np.cumsum(weights / weights.sum()), u, side="right")
            assert int(chosen[row]) == place != 3


def test_prompts_are_computed_once_and_finished_rollouts_leave(policy, engine):
    """What goes into the model: each prompt, padded, then a token a step of each in the batch."""
    requests = many(policy, 8, limit=24)
    fed: list[int] = []
    hook = policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    rollouts = list(engine.generate(requests))
    hook.remove()
    longest = max(len(r.prompt_tokens) for r in requests)
    assert fed[0] == len(PROMPTS) * longest
    lengths = [len(r.tokens) for r in rollouts]
    assert len(fed) == max(lengths)  # the last token of the longest is not fed
    for step, rows in enumerate(fed[1:], start=1):
        live = sum(length > step for length in lengths)
        assert live <= rows <= min(len(requests), live / CROWDED + 1)


@pytest.mark.parametrize("family", ["gemma3_text", "mistral", "lfm2", "gpt2"])
def test_models_with_other_caches_and_positions_sample_as_in_a_plain_pass(policy, family):
    """Sliding windows, convolutions, learnt positions; groups of three prompts of two lengths."""
    settings = {"gpt2": {}, "lfm2": {"layer_types": ["conv", "full_attention"]}}
    settings = settings.get(family, {"sliding_window": 6})
    own = with_model(policy, family, **settings)
    engine = TransformersEngine(progress=False)
    engine.sync(own, 0)
    rollouts = list(engine.generate(many(own, 3, limit=12)))
    assert largest_gap(own, rollouts) < 1e-4


def test_the_models_own_generation_defaults_do_not_change_what_is_sampled(policy, engine):
    requests = many(policy, 2)
    plain = by_place(engine.generate(requests))
    opinionated = copy.deepcopy(policy)
    settings = opinionated.model.generation_config
    settings.do_sample, settings.repetition_penalty = True, 1.5
    settings.top_k, settings.temperature, settings.suppress_tokens = 2, 0.3, [4, 5]
    other = TransformersEngine(progress=False)
    other.sync(opinionated, 3)
    before = torch.random.get_rng_state()
    assert by_place(other.generate(requests)) == plain
    assert torch.equal(torch.random.get_rng_state(), before)
    assert opinionated.model.generation_config is settings


def test_every_stop_token_of_the_generation_config_ends_a_completion(policy, engine):
    digit = policy.tokenizer("=")["input_ids"][0]
    stopping = copy.deepcopy(policy)
    stopping.model.generation_config.eos_token_id = [policy.eos_id, digit]
    other = TransformersEngine(progress=False)
    other.sync(stopping, 0)
    rollouts = list(other.generate(many(policy)))
    assert {r.tokens[-1] for r in rollouts} == {policy.eos_id, digit}
    assert all(digit not in r.tokens[:-1] for r in rollouts)
    assert not any(r.truncated for r in rollouts)


STOPS = ("xed{4", "}", "+3")


def test_a_stop_string_ends_a_completion_and_stays_in_it(policy, engine):
    whole = by_place(engine.generate(many(policy, 8)))
    stopped = stopping(policy, *STOPS)
    engine.sync(stopped, 4)
    found = by_place(engine.generate(many(policy, 8)))
    wanted = {place: cut_at_stop(stopped, rollout) for place, rollout in whole.items()}
    assert found.keys() == wanted.keys()
    for place, rollout in found.items():  # others have left the batch by then, which rounds
        assert rollout.logprobs == pytest.approx(wanted[place].logprobs, abs=1e-5)
        expected = replace(wanted[place], policy_version=4, logprobs=rollout.logprobs)
        assert rollout == expected
    assert {r.text[-1] for r in found.values()} >= {"4", "}", "3"}
    assert sum(len(r.tokens) for r in found.values()) < sum(len(r.tokens) for r in whole.values())


def test_a_stop_string_counts_within_the_length_limit_alone(policy, engine):
    stopped = stopping(policy, "}")
    engine.sync(stopped, 4)
    full = by_place(engine.generate(many(policy, 4)))
    lengths = {place: len(r.tokens) for place, r in full.items() if r.text.endswith("}")}
    assert lengths
    requests = [r for r in many(policy, 4) if (r.prompt, r.sample) in lengths]
    for fewer in (0, 1):
        limited = [
            dataclasses.replace(r, max_new_tokens=lengths[r.prompt, r.sample] - fewer)
            for r in requests
        ]
        for rollout in engine.generate([*limited, *many(policy, 1)[:1]]):
            if rollout.sample or rollout.prompt:
                assert rollout.truncated is bool(fewer)


def test_the_prefill_is_sampled_behind_and_judged(policy, engine):
    begun = stopping(policy, "}", prefill=" \\boxed{")
    engine.sync(begun, 4)
    _, ids = begun.encode(Problem("a", "12+34=?", "46", "made"))
    assert begun.decode(ids) == "12+34=? \\boxed{"
    (rollout,) = engine.generate([RolloutRequest(0, 0, tuple(ids), 0.0, 1, 8)])
    assert rollout.prompt_tokens == tuple(ids)
    assert rollout.text == " \\boxed{" + begun.decode(list(rollout.tokens))
    assert rollout.text.endswith("}")
    assert not rollout.truncated


def test_sampling_leaves_torchs_random_state_and_the_modes_of_modules_alone(policy):
    mixed = copy.deepcopy(policy)
    mixed.model.train()
    mixed.model.get_decoder().layers[1].eval()
    modes = [module.training for module in mixed.modules()]
    engine = TransformersEngine(progress=False)
    engine.sync(mixed, 0)
    before = torch.random.get_rng_state()
    assert len(list(engine.generate(many(policy, 1)))) == len(PROMPTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [module.training for module in mixed.modules()] == modes
    assert set(modes) == {True, False}


def test_a_policy_with_gradient_checkpointing_samples_the_same_tokens(policy, engine):
    other = TransformersEngine(progress=False)
    other.sync(Policy("embedded_arithmetic", gradient_checkpointing=True), 3)
    assert by_place(other.generate(many(policy, 1))) == by_place(engine.generate(many(policy, 1)))


def test_sync_takes_over_the_weights_as_they_are_and_skips_a_known_version(policy):
    changing = copy.deepcopy(policy)
    engine = TransformersEngine(progress=False)
    engine.sync(changing, 0)
    head = changing.model.get_output_embeddings().weight
    with torch.no_grad():
        head[:] = torch.nan
    engine.sync(changing, 0)  # a known version is not even looked at
    with pytest.raises(FloatingPointError, match=r"lm_head\.weight are not finite at policy vers"):
        engine.sync(changing, 1)


def test_sync_notices_another_policy_of_the_same_version(policy):
    broken = copy.deepcopy(policy)
    engine = TransformersEngine(progress=False)
    engine.sync(policy, 0)
    with torch.no_grad():
        broken.model.get_input_embeddings().weight[3, 0] = torch.inf
    with pytest.raises(FloatingPointError, match=r"embed_tokens"):
        engine.sync(broken, 0)
    assert len(list(engine.generate(many(policy, 1)))) == len(PROMPTS)  # still the sound one


def test_sampling_before_sync_and_after_close_is_an_error(policy):
    engine = TransformersEngine(progress=False)
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(engine.generate(many(policy, 1)))
    engine.sync(policy, 0)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(engine.generate(many(policy, 1)))
    engine.sync(policy, 0)  # the same version again, after a close
    assert len(list(engine.generate(many(policy, 1)))) == len(PROMPTS)


def test_an_empty_prompt_and_calls_of_no_rows_are_refused(policy, engine):
    empty = dataclasses.replace(request(policy, 2, 0), prompt_tokens=())
    with pytest.raises(ValueError, match="prompt row 2 is empty"):
        list(engine.generate([empty]))
    with pytest.raises(ValueError, match=r"engine\.rows_per_call=0"):
        TransformersEngine(rows_per_call=0)


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 34), (1.0, 3), (0.7, 4)])
def test_truncation_samples_the_likeliest_and_renormalises(policy, engine, top_p, top_k):
    requests = truncated(many(policy, tau=1.4), top_p, top_k)
    assert largest_gap_to_the_nucleus(policy, engine.generate(requests), top_p, top_k) < 1e-4


def test_truncation_leaves_other_rollouts_and_greedy_ones_alone(policy, engine):
    requests = many(policy, tau=1.2)
    greedy = many(policy, 1, tau=0.0)
    plain, likeliest = (by_place(engine.generate(each)) for each in (requests, greedy))
    cut = truncated([r for r in requests if r.sample == 3], 0.3, 2)
    rest = [r for r in requests if r.sample < 3]
    mixed = by_place(engine.generate([*rest, *cut]))
    assert {place: mixed[place].tokens for place in plain if place[1] < 3} == {
        place: r.tokens for place, r in plain.items() if place[1] < 3
    }
    assert by_place(engine.generate(truncated(greedy, 0.3, 2))) == likeliest


def test_no_requests_give_no_rollouts(engine):
    assert list(engine.generate([])) == []


def test_it_samples_from_the_live_weights(policy):
    live = copy.deepcopy(policy)
    engine = TransformersEngine(progress=False)
    engine.sync(live, 0)
    before = by_place(engine.generate(many(policy, 1)))
    with torch.no_grad():
        live.model.get_output_embeddings().weight.mul_(0.5)
    assert not engine.holds_weights
    assert by_place(engine.generate(many(policy, 1))) != before

"""vLLM for real, on the CPU: one engine serves most tests, each brings its policy and version."""

import copy
import dataclasses
import importlib.util
import itertools
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import e3rl.engines.vllm as vllm_engine
from e3rl.engines import vllm_build
from e3rl.engines.base import RolloutRequest
from e3rl.engines.canary import EngineMismatchError
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_build import INSTALL
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy.policy import Policy, embedded_folder
from engine_requests import (
    PROMPTS,
    by_place,
    cut_at_stop,
    largest_gap,
    largest_gap_to_the_nucleus,
    many,
    request,
    stopping,
    trainer_logits,
    truncated,
)

if importlib.util.find_spec("vllm") is None:
    pytest.skip(f"vLLM is not installed: {INSTALL}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
VERSIONS = itertools.count(1)


@pytest.fixture(scope="module")
def shared():
    engine = VLLMEngine(progress=False)
    yield engine
    engine.close()


@pytest.fixture
def engine(shared, policy):
    """The shared engine with the embedded policy, whatever the test before did to it."""
    shared.sync(policy, next(VERSIONS))
    return shared


@pytest.fixture
def changed(policy):
    """The policy after something like an update, too small a change to see in the texts."""
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.05)
    return other


@pytest.mark.parametrize("tau", [0.6, 1.0, 1.4, 2.6])  # vLLM itself takes up to 2
def test_log_probs_are_the_policys_own_at_the_sampling_temperature(policy, engine, tau):
    rollouts = list(engine.generate(many(policy, tau=tau)))
    assert len(rollouts) == 4 * len(PROMPTS)
    assert {r.temperature for r in rollouts} == {tau}
    assert {r.policy_version for r in rollouts} == {engine._version}
    assert largest_gap(policy, rollouts) < 1e-4


def test_each_rollout_has_its_own_temperature(policy, engine):
    taus = (0.0, 0.6, 1.0, 3.0)
    requests = [request(policy, p, s, tau=taus[s]) for p in range(5) for s in range(4)]
    rollouts = list(engine.generate(requests))
    assert all(r.temperature == taus[r.sample] for r in rollouts)
    assert largest_gap(policy, rollouts) < 1e-4


def test_greedy_tokens_are_those_of_the_transformers_engine(policy, engine):
    other = TransformersEngine(progress=False)
    other.sync(policy, 0)
    requests = many(policy, 1, tau=0.0)
    mine, theirs = (by_place(e.generate(requests)) for e in (engine, other))
    for place, rollout in mine.items():
        if rollout.tokens == theirs[place].tokens:
            assert rollout.text == theirs[place].text
            assert rollout.truncated == theirs[place].truncated
            assert rollout.logprobs == pytest.approx(theirs[place].logprobs, abs=1e-3)
            continue
        pairs = zip(rollout.tokens, theirs[place].tokens, strict=False)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        top = trainer_logits(policy, rollout)[first].topk(2).values
        assert top[0] - top[1] < 1e-4


@pytest.mark.parametrize(("top_p", "top_k"), [(0.6, 34), (1.0, 3), (0.7, 4)])
def test_truncation_samples_the_likeliest_and_renormalises(policy, engine, top_p, top_k):
    whole = [dataclasses.replace(r, prompt=r.prompt + 5) for r in many(policy, 1, tau=1.4)]
    requests = [*truncated(many(policy, tau=1.4), top_p, top_k), *whole]
    rollouts = list(engine.generate(requests))
    cut = [r for r in rollouts if r.prompt < 5]
    assert largest_gap_to_the_nucleus(policy, cut, top_p, top_k) < 1e-4
    assert largest_gap(policy, [r for r in rollouts if r.prompt >= 5]) < 1e-4


@pytest.mark.parametrize("tau", [0.0, 0.4, 1.3])
def test_the_canary_samples_at_the_temperature_that_rollouts_will_have(
    policy, engine, monkeypatch, tau
):
    asked = []
    right = engine._loop._sampling_of
    monkeypatch.setattr(
        engine._loop, "_sampling_of", lambda r, stops: asked.append(r) or right(r, stops)
    )
    engine.sync(policy, next(VERSIONS), tau)
    assert [r.temperature for r in asked] == [tau or 1.0] * 4 + [2.0] * 4
    assert 0 < engine.metrics()["engine/canary_max"] < 1e-4


def test_a_seed_alone_decides_a_rollout(policy, engine):
    requests = many(policy)
    together = by_place(engine.generate(requests))
    turned = by_place(engine.generate(requests[::-1]))
    alone = by_place(r for one in requests[:6] for r in engine.generate([one]))
    other = by_place(engine.generate(many(policy, seed=1)))
    assert turned == together
    assert alone == {place: together[place] for place in alone}
    assert sum(together[place].tokens != other[place].tokens for place in together) > 10


def scheduler_of(engine):
    return engine._llm.llm_engine.engine_core.engine_core.scheduler


def tokens_computed(engine, requests, monkeypatch):
    """The rollouts of a call, and the tokens that went through the model for them."""
    scheduler, computed = scheduler_of(engine), []
    schedule = scheduler.schedule

    def counted(*args):
        output = schedule(*args)
        computed.append(output.total_num_scheduled_tokens)
        return output

    with monkeypatch.context() as counting:
        counting.setattr(scheduler, "schedule", counted)
        rollouts = list(engine.generate(requests))
    return by_place(rollouts), sum(computed)


@pytest.mark.parametrize("longer", [0, 27, 32, 60])
def test_a_group_computes_its_prompt_once_however_short_it_is(policy, engine, monkeypatch, longer):
    requests = [
        dataclasses.replace(r, prompt_tokens=r.prompt_tokens + (3 + r.prompt,) * longer)
        for r in many(policy, 6)
    ]
    rollouts, computed = tokens_computed(engine, requests, monkeypatch)
    prompts = sum(len(r.prompt_tokens) for r in requests if r.sample == 0)
    others = sum(r.sample > 0 for r in requests)  # compute the last token of theirs
    assert computed == prompts + others + sum(len(r.tokens) - 1 for r in rollouts.values())
    assert largest_gap(policy, rollouts.values()) < 1e-4
    for r in requests[3::6]:
        engine.sync(policy, next(VERSIONS))  # forgets all prefixes
        (alone,) = engine.generate([r])
        assert alone.tokens == rollouts[r.prompt, r.sample].tokens


def test_groups_share_prompts_while_requests_lose_their_place_in_the_cache(policy, engine):
    requests = [request(policy, p, s, limit=100) for p in range(3) for s in range(20)]
    whole = by_place(engine.generate(requests))
    config = policy.model.config
    width = config.hidden_size // config.num_attention_heads
    block = 32 * config.num_hidden_layers * config.num_key_value_heads * 2 * width * 4  # bytes
    small = VLLMEngine(VLLMSettings(kv_cache_memory_bytes=24 * block), progress=False)
    small.sync(policy, 0)
    found = list(small.generate(requests))
    rollouts, lost = by_place(found), small.metrics()["engine/preempted"]
    assert lost > 0
    small.sync(policy, 1)
    assert small.metrics()["engine/preempted"] == 0
    small.close()
    assert {p: r.tokens for p, r in rollouts.items()} == {p: r.tokens for p, r in whole.items()}
    assert largest_gap(policy, rollouts.values()) < 1e-4


def test_nobody_counts_the_ranks_of_tokens(policy, engine, monkeypatch):
    from vllm.v1.sample import sampler

    monkeypatch.delattr(sampler, "batched_count_greater_than")  # compiled at its first call
    assert len(list(engine.generate(many(policy, 1)))) == len(PROMPTS)


def test_a_configuration_has_one_folder(policy, tmp_path, monkeypatch):
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path))

    def folder_of(config):
        return vllm_build.config_folder(vllm_build.config_files(config))

    config = copy.deepcopy(policy.model.config)
    folder = folder_of(config)
    assert folder == folder_of(copy.deepcopy(config))
    assert (folder / "config.json").is_file()
    assert tmp_path in folder.parents
    config.rms_norm_eps *= 2
    assert folder_of(config) != folder


def test_completions_end_with_a_stop_token_or_are_marked_as_truncated(policy, engine):
    rollouts = list(engine.generate(many(policy, limit=12)))
    for r in rollouts:
        assert r.truncated is (r.tokens[-1] != policy.eos_id)
        assert policy.eos_id not in r.tokens[:-1]
        assert len(r.tokens) == 12 if r.truncated else len(r.tokens) <= 12
        assert "<eos>" not in r.text
    assert {r.truncated for r in rollouts} == {True, False}


def test_a_stop_string_ends_a_completion_and_stays_in_it(policy, engine):
    whole = by_place(engine.generate(many(policy, 16)))
    stopped = stopping(policy, "xed{4", "}", "+3")
    engine.sync(stopped, engine._version)
    found = by_place(engine.generate(many(policy, 16)))
    assert found == {place: cut_at_stop(stopped, rollout) for place, rollout in whole.items()}
    assert {r.text[-1] for r in found.values()} >= {"4", "}", "3"}
    assert not engine._llm.llm_engine.has_unfinished_requests()
    assert by_place(engine.generate(many(policy, 16))) == found


def test_stop_strings_hold_for_what_a_deadline_cuts_too(policy, engine, monkeypatch):
    requests = [request(policy, p, s, limit=200) for p in range(5) for s in range(80)]
    stopped = stopping(policy, "1", "2", "\\")
    engine.sync(stopped, engine._version)
    whole = by_place(engine.generate(requests))
    monkeypatch.setattr(engine, "deadline_s", 1e-9)
    for place, rollout in by_place(engine.generate(requests)).items():
        ended = rollout.tokens == whole[place].tokens and not whole[place].truncated
        assert rollout.truncated is not ended
        assert rollout.tokens == whole[place].tokens[: len(rollout.tokens)]


def test_greedy_completions_of_both_engines_end_at_the_same_stop_strings(policy, engine):
    stopped = stopping(policy, "}", "4", prefill=" \\boxed{")
    other = TransformersEngine(progress=False)
    other.sync(stopped, engine._version)
    engine.sync(stopped, engine._version)
    requests = many(policy, 1, tau=0.0)
    mine, theirs = (by_place(e.generate(requests)) for e in (engine, other))
    for place, rollout in mine.items():
        assert rollout.tokens == theirs[place].tokens
        assert rollout.text == theirs[place].text
        assert rollout.text.startswith(" \\boxed{")
        assert rollout.truncated == theirs[place].truncated
        assert rollout.logprobs == pytest.approx(theirs[place].logprobs, abs=1e-3)


def test_rollouts_arrive_while_others_are_being_generated(policy, engine):
    requests = [request(policy, 0, 0, limit=1), request(policy, 1, 0, limit=24)]
    stream = engine.generate(requests)
    assert next(stream).prompt == 0
    assert engine._llm.llm_engine.has_unfinished_requests()
    assert [r.prompt for r in stream] == [1]


def test_a_known_version_is_not_sent_again(policy, engine, monkeypatch):
    monkeypatch.setattr(engine, "_send", pytest.fail)
    engine.sync(policy, engine._version)
    assert len(list(engine.generate(many(policy, 1)))) == len(PROMPTS)


def test_sync_takes_new_weights_over(policy, engine, changed):
    requests = many(policy)
    before = list(engine.generate(requests))
    engine.sync(changed, next(VERSIONS))
    after = list(engine.generate(requests))
    assert largest_gap(changed, after) < 1e-4
    assert largest_gap(changed, before) > 1e-2
    assert 0 < engine.metrics()["engine/canary_max"] < 1e-4
    assert engine.metrics()["engine/canary_mean"] <= engine.metrics()["engine/canary_max"]


def test_it_holds_a_copy_of_the_weights(engine, policy, changed):
    engine.sync(changed, next(VERSIONS))
    before = by_place(engine.generate(many(policy)))
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.zero_()
    assert engine.holds_weights
    assert by_place(engine.generate(many(policy))) == before


def test_weights_that_do_not_arrive_are_noticed(engine, changed, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(engine._llm, "collective_rpc", lambda *_, **__: None)
        with pytest.raises(EngineMismatchError, match="disagree at policy version 77: "):
            engine.sync(changed, 77)
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(engine.generate(many(changed, 1)))
    engine.sync(changed, 77)  # the same version is sent, since it did not arrive
    assert largest_gap(changed, engine.generate(many(changed, 1))) < 1e-4


def test_a_prefix_cache_that_outlives_a_sync_is_noticed(engine, changed, monkeypatch):
    assert engine._llm.llm_engine.vllm_config.cache_config.block_size == 32
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    with pytest.raises(EngineMismatchError, match="prefix cache"):
        engine.sync(changed, next(VERSIONS))


def test_a_temperature_that_is_ignored_is_noticed(policy, engine, monkeypatch):
    right = engine._loop._sampling_of
    monkeypatch.setattr(
        engine._loop,
        "_sampling_of",
        lambda r, stops: right(dataclasses.replace(r, temperature=1.0), stops),
    )
    with pytest.raises(EngineMismatchError, match="temperature"):
        engine.sync(policy, next(VERSIONS))


def test_a_tied_head_is_sent_and_one_that_stays_behind_is_noticed(tmp_path, monkeypatch):
    config = Policy().model.config
    config.tie_word_embeddings = True
    config.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((embedded_folder() / name).read_bytes())
    tied = Policy(str(tmp_path), random_weights=True)
    engine = VLLMEngine(progress=False)
    engine.sync(tied, 0)
    assert largest_gap(tied, engine.generate(many(tied, 1))) < 1e-4
    with torch.no_grad():
        tied.model.get_input_embeddings().weight.mul_(2)
    whole = vllm_engine.named_weights
    with monkeypatch.context() as broken:
        broken.setattr(
            vllm_engine, "named_weights", lambda model, tied_head: whole(model, tied_head=False)
        )
        with pytest.raises(EngineMismatchError, match="tied heads"):
            engine.sync(tied, 1)
    engine.sync(tied, 1)
    assert largest_gap(tied, engine.generate(many(tied, 1))) < 1e-4
    engine.close()


def test_weights_that_are_not_finite_are_not_sent(policy, engine, changed, monkeypatch):
    with torch.no_grad():
        changed.model.get_output_embeddings().weight[3, 0] = torch.nan
    with pytest.raises(FloatingPointError, match=r"lm_head\.weight are not finite at policy"):
        engine.sync(changed, next(VERSIONS))
    assert largest_gap(policy, engine.generate(many(policy, 1))) < 1e-4  # still the sound ones
    monkeypatch.setattr(vllm_engine, "check_finite", lambda *_: None)
    with pytest.raises(FloatingPointError, match="log-probs that are not finite"):
        engine.sync(changed, next(VERSIONS))


def test_weights_that_do_not_fit_are_named_before_anything_is_sent(policy, engine, changed):
    head = changed.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight[:, :64].clone())
    with pytest.raises(ValueError, match=r"of another shape: lm_head\.weight"):
        engine.sync(changed, next(VERSIONS))
    assert largest_gap(policy, engine.generate(many(policy, 1))) < 1e-4


def test_an_engine_broken_by_a_transfer_is_built_anew(policy, engine, changed, monkeypatch):
    whole = vllm_engine.named_weights
    torn = iter([True])

    def once_torn(model, tied_head):
        for name, weight in whole(model, tied_head):
            yield name, weight[..., :-1] if next(torn, False) else weight

    version, requests = next(VERSIONS), many(policy)
    engine.sync(changed, version)
    undisturbed = by_place(engine.generate(requests))
    engine.sync(policy, next(VERSIONS))
    monkeypatch.setattr(vllm_engine, "named_weights", once_torn)
    before = engine._llm
    engine.sync(changed, version)
    assert engine._llm is not before
    assert by_place(engine.generate(requests)) == undisturbed  # the same seeds, the same rollouts
    assert largest_gap(changed, undisturbed.values()) < 1e-4


def test_a_transfer_that_keeps_failing_ends_the_run_and_the_next_sync_recovers(
    engine, changed, monkeypatch
):
    with monkeypatch.context() as broken:
        broken.setattr(
            vllm_engine, "named_weights", lambda *_, **__: iter([("nobody", torch.ones(2))])
        )
        with pytest.raises(ValueError, match="nobody"):
            engine.sync(changed, next(VERSIONS))
        with pytest.raises(RuntimeError, match=r"before engine\.sync"):
            list(engine.generate(many(changed, 1)))
    engine.sync(changed, next(VERSIONS))
    assert largest_gap(changed, engine.generate(many(changed, 1))) < 1e-4


def test_a_call_that_nobody_finishes_leaves_nothing_behind(policy, engine):
    whole = by_place(engine.generate(many(policy)))
    abandoned = engine.generate(many(policy))
    next(abandoned)
    assert by_place(engine.generate(many(policy))) == whole
    abandoned.close()
    assert not engine._llm.llm_engine.has_unfinished_requests()


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_engine_works_after_an_exception_in_a_step(policy, engine, monkeypatch, error):
    whole = by_place(engine.generate(many(policy)))
    core = engine._llm.llm_engine
    step, steps = core.step, itertools.count()

    def interrupted():
        if next(steps) == 3:
            raise error
        return step()

    with monkeypatch.context() as broken:
        broken.setattr(core, "step", interrupted)
        with pytest.raises(error):
            list(engine.generate(many(policy)))
    assert not core.has_unfinished_requests()
    assert by_place(engine.generate(many(policy))) == whole


def test_a_call_in_another_thread_gives_the_same_and_can_be_ended(policy, engine):
    whole = by_place(engine.generate(many(policy)))
    begun = threading.Event()

    def endless():
        for _ in engine.generate([request(policy, 0, s, limit=200) for s in range(5000)]):
            begun.set()

    with ThreadPoolExecutor(1) as thread:
        aside = thread.submit(lambda: by_place(engine.generate(many(policy))))
        assert aside.result() == whole
        call = thread.submit(endless)
        assert begun.wait(60)
        engine.interrupt()
        with pytest.raises(InterruptedError, match="rollouts were still being sampled"):
            call.result()
    assert not engine._llm.llm_engine.has_unfinished_requests()
    engine._loop.interrupted.clear()
    assert by_place(engine.generate(many(policy))) == whole


def test_a_deadline_cuts_what_is_unfinished_and_marks_it(policy, engine, monkeypatch):
    requests = [request(policy, p, s, limit=200) for p in range(5) for s in range(80)]
    whole = by_place(engine.generate(requests))
    monkeypatch.setattr(engine, "deadline_s", 1e-9)
    cut = by_place(engine.generate(requests))
    assert cut.keys() == whole.keys()
    assert engine.metrics()["engine/cut"] == len(requests)
    for place, rollout in cut.items():
        assert rollout.tokens == whole[place].tokens[: len(rollout.tokens)]
        assert rollout.logprobs == pytest.approx(whole[place].logprobs[: len(rollout.tokens)])
        assert rollout.truncated is (rollout.tokens[-1] != policy.eos_id)
    monkeypatch.setattr(engine, "deadline_s", 60.0)
    engine.sync(policy, engine._version)
    assert by_place(engine.generate(requests)) == whole
    assert engine.metrics()["engine/cut"] == 0


def test_cuts_add_up_until_the_next_sync_and_validation_is_not_cut(policy, engine, monkeypatch):
    requests = [request(policy, p, s, limit=200) for p in range(5) for s in range(80)]
    monkeypatch.setattr(engine, "deadline_s", 1e-9)
    for _ in range(2):
        list(engine.generate(requests))
    assert engine.metrics()["engine/cut"] == 2 * len(requests)
    assert engine.metrics()["engine/tokens_per_s"] > 0
    engine.sync(policy, engine._version)
    kept = [dataclasses.replace(r, may_be_cut=False) for r in requests]
    assert max(len(r.tokens) for r in engine.generate(kept)) > 1
    assert engine.metrics()["engine/cut"] == 0


def test_weights_that_change_within_a_version_are_sent_again(policy, engine, changed):
    whole = list(engine.generate(many(policy, 1)))
    other = copy.deepcopy(policy)
    engine.sync(other, engine._version)
    other.load_state_dict(changed.state_dict())
    engine.sync(other, engine._version)
    assert largest_gap(changed, engine.generate(many(policy, 1))) < 1e-4
    assert largest_gap(changed, whole) > 1e-3


def test_an_engine_that_does_not_start_leaves_no_process_group(engine, policy):
    engine.close()
    too_long = VLLMEngine(VLLMSettings(max_model_len=10_000_000), progress=False)
    with pytest.raises(ValueError, match="max"):
        too_long.sync(policy, next(VERSIONS))
    assert not torch.distributed.is_initialized()
    engine.sync(policy, next(VERSIONS))


def test_heads_that_the_cpu_has_no_kernel_for_are_refused_before_vllm_starts(policy, monkeypatch):
    other = Policy()
    other.model.config.num_attention_heads = 8  # of 16 dimensions each
    other.model = type(other.model)(other.model.config)
    engine = VLLMEngine(progress=False)
    monkeypatch.setattr(vllm_build, "_start", pytest.fail)
    with pytest.raises(ValueError, match=r"have 16 dimensions.* for 32, 64, .*engine=transformers"):
        engine.sync(other, 0)


def test_a_long_context_is_cut_to_what_the_cache_holds(engine):
    long = Policy()
    long.model.config.max_position_embeddings = 10_000_000
    engine.sync(long, next(VERSIONS))
    config = engine._llm.llm_engine.vllm_config.model_config
    assert 1_000 < config.max_model_len < 10_000_000
    assert largest_gap(long, engine.generate(many(long, 1))) < 1e-4
    # Nor are there buffers for ten million tokens.
    assert engine._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens == 2**15


def test_memory_is_planned_for_the_longest_rollout_there_will_be(engine):
    long = Policy()
    long.model.config.max_position_embeddings = 100_000
    planned = VLLMEngine(progress=False)
    planned.plan_for(300)
    planned.sync(long, 0)
    config = planned._llm.llm_engine.vllm_config
    assert config.model_config.max_model_len == 512  # the next multiple of 256
    first = planned._llm
    planned.plan_for(200)
    planned.sync(long, 1)
    assert planned._llm is first
    planned.plan_for(600)  # other problems: it is built anew
    planned.sync(long, 2)
    assert planned._llm.llm_engine.vllm_config.model_config.max_model_len == 768
    assert largest_gap(long, planned.generate(many(long, 1))) < 1e-4
    planned.close()


def random_prompt(prompt, length, limit=8):
    """A request of `length` random tokens, no two of which share a beginning."""
    ids = np.random.default_rng(prompt).integers(4, 30, size=length).tolist()
    return RolloutRequest(prompt, 0, tuple(ids), 1.0, prompt, limit)


def test_any_number_of_prompts_can_wait_at_once(policy, engine):
    requests = [random_prompt(p, 200) for p in range(45)]  # 9,000 tokens, of 4,096 in a step
    together = by_place(engine.generate(requests))
    assert largest_gap(policy, list(together.values())[:3]) < 1e-4
    alone = by_place(r for p in (0, 21, 44) for r in engine.generate([requests[p]]))
    assert alone == {place: together[place] for place in alone}


def test_a_prompt_may_be_longer_than_vllms_step(engine):
    long = Policy()
    long.model.config.max_position_embeddings = 4_500
    engine.sync(long, next(VERSIONS))
    requests = [random_prompt(p, length) for p, length in enumerate((4492, 9, 4097, 30))]
    together = by_place(engine.generate(requests))
    assert len(together) == 4
    assert largest_gap(long, [together[0, 0], together[1, 0]]) < 1e-3
    alone = by_place(engine.generate(requests[2:3]))[2, 0]
    assert alone.tokens == together[2, 0].tokens
    assert alone.logprobs == pytest.approx(together[2, 0].logprobs, abs=1e-5)  # other kernels
    with pytest.raises(ValueError, match="leaves no room for 8 more within 4500"):
        list(engine.generate([random_prompt(0, 4493)]))


def test_a_deadline_keeps_what_has_been_sampled_by_then(policy, engine, monkeypatch):
    requests = [request(policy, 0, s, limit=24) for s in range(1100)]  # more than run together
    core = engine._llm.llm_engine
    step, steps = core.step, itertools.count(1)

    def late():
        outputs = step()
        if next(steps) == 4:
            engine._loop.seconds += 100.0
        return outputs

    whole = by_place(engine.generate(requests))
    monkeypatch.setattr(core, "step", late)
    monkeypatch.setattr(engine, "deadline_s", 60.0)
    lengths = [len(r.tokens) for r in by_place(engine.generate(requests)).values()]
    assert len(lengths) == len(whole)
    assert {1, 3, 4} <= set(lengths) <= {1, 2, 3, 4}  # who waited; the group; its first


@contextmanager
def everything_random_stays_as_it_is():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    set_threads = torch.set_num_threads
    yield
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert torch.set_num_threads is set_threads


def test_engines_close_twice_and_start_again(policy, engine):
    whole = by_place(engine.generate(many(policy)))
    second = VLLMEngine(progress=False)
    second.close()
    with everything_random_stays_as_it_is():
        second.sync(policy, engine._version)
        assert by_place(second.generate(many(policy))) == whole
        second.close()
    second.close()
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(second.generate(many(policy, 1)))
    assert by_place(engine.generate(many(policy))) == whole  # the other one is still there
    engine.close()
    assert not torch.distributed.is_initialized()
    engine.sync(policy, next(VERSIONS))
    assert torch.distributed.is_initialized()


def test_a_bfloat16_policy_samples_in_bfloat16(policy, engine):
    half = Policy("embedded_arithmetic", dtype="bfloat16")
    engine.sync(half, next(VERSIONS))
    assert engine._llm.llm_engine.vllm_config.model_config.dtype == torch.bfloat16
    rollouts = list(engine.generate(many(half)))
    assert 1e-5 < largest_gap(half, rollouts) < 0.3
    assert 1e-3 < engine.metrics()["engine/canary_quartile"] < 0.15
    engine.sync(policy, next(VERSIONS))  # another precision is another engine
    assert largest_gap(policy, engine.generate(many(policy, 1))) < 1e-4


def test_a_float32_policy_can_be_sampled_in_bfloat16(policy):
    engine = VLLMEngine(VLLMSettings(dtype="bfloat16"), progress=False)
    engine.sync(policy, 0)
    assert 1e-3 < engine.metrics()["engine/canary_quartile"] < 0.15
    engine.canary_tolerance = 1e-6
    with pytest.raises(EngineMismatchError, match=r"tolerance 1e-06"):
        engine.sync(policy, 1)
    engine.close()


def test_prompts_without_room_are_refused(policy, engine):
    empty = dataclasses.replace(request(policy, 2, 0), prompt_tokens=())
    with pytest.raises(ValueError, match="prompt row 2 is empty"):
        list(engine.generate([empty]))
    with pytest.raises(ValueError, match=r"no room for 250 more within 256: lower max_new_tokens"):
        list(engine.generate([request(policy, 0, 0, limit=250)]))
    assert list(engine.generate([])) == []


def test_a_client_without_a_way_out_of_its_own_has_none_to_detach(monkeypatch):
    """vLLM 0.24's."""
    made = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=SimpleNamespace()))
    monkeypatch.setattr("vllm.LLM", lambda *args, **kwargs: made)
    assert vllm_build._start("folder", {}) is made

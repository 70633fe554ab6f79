"""The engine of servers against stand-ins that speak vLLM's routes; transformers samples there."""

import copy
import dataclasses
import itertools
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from e3rl.engines import weight_folders
from e3rl.engines.base import ManagedEngine
from e3rl.engines.canary import EngineMismatchError
from e3rl.engines.memory_errors import EngineMemoryError
from e3rl.engines.servers.client import Server, ServerLostError, UnfitServerError
from e3rl.engines.servers.files import FileTransfer
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.vllm_server import VLLMServerEngine
from engine_requests import by_place, cut_at_stop, largest_gap, many, request, stopping
from server_stand_in import StandIn, stand_ins

VERSIONS = itertools.count(1)


def connect(*servers, folder=None, **settings) -> VLLMServerEngine:
    urls = [server if isinstance(server, str) else server.url for server in servers]
    return VLLMServerEngine(urls, FileTransfer(folder), progress=False, **settings)


@pytest.fixture(scope="module")
def pair(policy):
    with stand_ins(policy, 2) as servers:
        yield servers


@pytest.fixture
def engine(pair, policy):
    engine = connect(*pair)
    engine.sync(policy, next(VERSIONS))
    yield engine
    engine.close()


def test_weights_that_memory_has_no_room_for_go_where_temporary_files_do(tmp_path, monkeypatch):
    monkeypatch.setattr(weight_folders.tempfile, "tempdir", str(tmp_path))
    free = weight_folders.shutil.disk_usage(weight_folders.MEMORY).free
    for size, here in ((12, False), (10 * free, True)):
        folders = weight_folders.WeightFolders()
        held = folders.hold(None, iter([("w", torch.zeros(3))]), size)
        assert held.path.is_relative_to(tmp_path) == here
        assert held.path.is_relative_to(weight_folders.MEMORY) != here
        folders.close()
        assert not held.path.exists()


@pytest.fixture
def changed(policy):
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.05)
    return other


@pytest.fixture(scope="module")
def expected(policy):
    """Rollouts of `many(policy)` by transformers in this process."""
    own = TransformersEngine(progress=False)
    own.sync(policy, 0)
    return by_place(own.generate(many(policy)))


def generate_all(engine, requests):
    return by_place(engine.generate(requests))


def test_rollouts_of_all_servers_are_those_of_the_weights_that_were_sent(
    policy, pair, engine, expected
):
    before = [server.calls["/inference/v1/generate"] for server in pair]
    rollouts = generate_all(engine, many(policy))
    assert {p: r.tokens for p, r in rollouts.items()} == {p: r.tokens for p, r in expected.items()}
    assert largest_gap(policy, rollouts.values()) < 1e-4
    assert {r.policy_version for r in rollouts.values()} == {engine._version}
    asked = [s.calls["/inference/v1/generate"] - n for s, n in zip(pair, before, strict=True)]
    assert sum(asked) == len(rollouts)
    assert min(asked) > 0
    assert isinstance(engine, ManagedEngine)


def test_a_sync_sends_new_weights_and_forgets_prefixes_once_a_version(
    policy, pair, engine, changed
):
    before = [copy.copy(server.calls) for server in pair]
    engine.sync(changed, 7)
    engine.sync(changed, 7)  # known
    for server, old in zip(pair, before, strict=True):
        assert server.calls["/reset_prefix_cache"] - old["/reset_prefix_cache"] == 1
        assert not server.paused
    rollouts = generate_all(engine, many(policy, 1))
    assert largest_gap(changed, rollouts.values()) < 1e-4
    with torch.no_grad():
        next(changed.parameters()).mul_(1.01)
    engine.sync(changed, 7)  # the version is the same, the weights are not
    assert largest_gap(changed, generate_all(engine, many(policy, 1)).values()) < 1e-4


def test_weights_are_written_once_whole_and_deleted(policy, tmp_path, pair):
    for server in pair:
        server.read.clear()
    engine = connect(*pair, folder=str(tmp_path))
    engine.sync(policy, 0)
    assert pair[0].read == pair[1].read == [(pair[0].read[0][0], ["model-00000.safetensors"])]
    (own,) = tmp_path.iterdir()  # of this process
    assert Path(pair[0].read[0][0]).parent == own
    assert list(own.iterdir()) == []
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_weights_that_are_held_are_those_of_their_time_and_wait_for_the_thread(
    policy, tmp_path, pair, changed
):
    engine = connect(*pair, folder=str(tmp_path))
    trained = copy.deepcopy(policy)
    engine.sync(trained, 0)
    with torch.no_grad():
        for own, other in zip(trained.parameters(), changed.parameters(), strict=True):
            own.copy_(other)
    take_over = engine.hold(trained, 1)
    with torch.no_grad():
        for own in trained.parameters():
            own.mul_(0.9)  # the next update
    rollouts = list(engine.generate(many(policy, 1)))
    assert largest_gap(policy, rollouts) < 1e-4
    assert {r.policy_version for r in rollouts} == {0}
    take_over()
    rollouts = list(engine.generate(many(policy, 1)))
    assert largest_gap(changed, rollouts) < 1e-4
    assert {r.policy_version for r in rollouts} == {1}
    (own,) = tmp_path.iterdir()
    assert list(own.iterdir()) == []
    engine.hold(trained, 2)  # nobody takes these over
    engine.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_held_is_gone_when_the_process_is_killed(tmp_path):
    code = (
        "import os, signal, sys, torch\n"
        "from e3rl.engines.servers.files import FileTransfer\n"
        "held = FileTransfer(sys.argv[1]).hold(None, iter([('w', torch.zeros(3))]))\n"
        "assert (held.path / 'model-00000.safetensors').is_file()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)])
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: not list(tmp_path.iterdir()))


def test_a_folder_without_room_is_an_error_of_the_system(tmp_path, monkeypatch):
    def full(*_):
        raise SafetensorError("No space left on device (os error 28)")

    monkeypatch.setattr(weight_folders, "save_file", full)
    with pytest.raises(OSError, match=r"weights could not be written to .*No space left"):
        FileTransfer(str(tmp_path)).hold(None, iter([("w", torch.zeros(3))]))


def test_a_relative_folder_is_named_in_full_to_servers(policy, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pair[0].read.clear()
    engine = connect(pair[0], folder="weights")
    engine.sync(policy, 0)
    assert Path(pair[0].read[0][0]).parents[1] == tmp_path / "weights"
    engine.close()


def test_large_weights_come_in_several_files(policy, pair, monkeypatch, tmp_path):
    monkeypatch.setattr(weight_folders, "FILE_BYTES", 300_000)
    pair[0].read.clear()
    engine = connect(pair[0], folder=str(tmp_path))
    engine.sync(policy, 0)
    assert len(pair[0].read[0][1]) > 3
    assert largest_gap(policy, engine.generate(many(policy, 1))) < 1e-4
    engine.close()


def test_stop_strings_end_completions_where_they_do_elsewhere(policy, engine):
    stopped = stopping(policy, "xed{4", "}", "+3")
    whole = generate_all(engine, many(policy, 4))
    engine.sync(stopped, engine._version)
    found = generate_all(engine, many(policy, 4))
    cut = {place: cut_at_stop(stopped, rollout) for place, rollout in whole.items()}
    assert {p: (r.tokens, r.truncated, r.text) for p, r in found.items()} == {
        p: (r.tokens, r.truncated, r.text) for p, r in cut.items()
    }
    assert any(len(cut[p].tokens) < len(whole[p].tokens) for p in cut)


def test_rollouts_that_servers_put_off_since_the_last_sync_are_counted(policy):
    with stand_ins(policy, 2) as (one, other):
        one.preempted = 7
        engine = connect(one, other)
        engine.sync(policy, 0)
        assert engine.metrics()["engine/preempted"] == 0
        one.preempted, other.preempted = 9, 3
        assert engine.metrics()["engine/preempted"] == 2 + 3
        engine.sync(policy, 1)
        assert engine.metrics()["engine/preempted"] == 0
        other.preempted = 5
        engine.sync(policy, 1)  # known
        assert engine.metrics()["engine/preempted"] == 0
        one.preempted = 1  # it was started anew
        assert engine.metrics()["engine/preempted"] == 0
        one.tells_metrics = False
        assert engine.metrics()["engine/preempted"] == 0
        assert len(list(engine.generate(many(policy, 1)))) == len(many(policy, 1))
        engine.close()


def test_a_server_that_is_slow_to_tell_figures_goes_on_sampling(policy, monkeypatch):
    async def late(server):
        raise ServerLostError("no answer in time")

    monkeypatch.setattr(Server, "preemptions", late)
    with stand_ins(policy, 1) as (server,):
        engine = connect(server)
        engine.sync(policy, 0)
        assert engine.metrics()["engine/preempted"] == 0
        assert len(list(engine.generate(many(policy, 1)))) == len(many(policy, 1))
        server.kill()
        with pytest.raises(ServerLostError):
            list(engine.generate(many(policy, 1)))
        with pytest.raises(ServerLostError):  # by now it is known
            list(engine.generate(many(policy, 1)))
        engine.close()


@pytest.mark.parametrize("broken", ["weights", "temperature"])
def test_the_canary_names_the_server_that_samples_from_something_else(
    policy, changed, broken, monkeypatch
):
    with stand_ins(policy, 2) as (good, bad):
        sample = bad._sample
        if broken == "weights":
            monkeypatch.setattr(bad, "policy", changed)
            monkeypatch.setattr(bad, "_workers", lambda body: {"results": [None]})
        else:
            monkeypatch.setattr(bad, "_sample", lambda i, g: sample(i, {**g, "temperature": 1.0}))
        engine = connect(good, bad)
        with pytest.raises(EngineMismatchError, match=rf"the server at {bad.url} and policy"):
            engine.sync(policy, 0)
        engine.close()


def test_the_canary_names_the_server_that_did_not_take_over_what_was_held(
    policy, changed, monkeypatch
):
    with stand_ins(policy, 2) as (good, bad):
        engine = connect(good, bad)
        engine.sync(policy, 0)
        held, later = engine.hold(changed, 1, 0.8), copy.deepcopy(changed)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.mul_(0.9)  # the next update, which the canary must not go by
        held()
        assert engine.metrics()["engine/canary_max"] < 1e-4
        assert engine.metrics()["engine/canary_s"] > 0
        assert largest_gap(later, engine.generate(many(policy, 1))) < 1e-4
        late = engine.hold(changed, 2)
        monkeypatch.setattr(bad, "_workers", lambda body: {"results": [None]})
        with pytest.raises(EngineMismatchError, match=rf"the server at {bad.url} and .* version 2"):
            late()
        with pytest.raises(RuntimeError, match=r"before engine\.sync"):
            list(engine.generate(many(policy, 1)))
        engine.close()


@pytest.mark.end_to_end
def test_a_deadline_keeps_what_is_there_and_gives_every_rollout_a_token(policy, expected):
    with stand_ins(policy, 1, token_s=0.15) as (server,):
        engine = connect(server, deadline_s=2.0, at_once=8)
        engine.sync(policy, 0)
        rollouts = generate_all(engine, many(policy))
        assert rollouts.keys() == expected.keys()
        for place, rollout in rollouts.items():
            assert 1 <= len(rollout.tokens) <= 24
            assert rollout.tokens == expected[place].tokens[: len(rollout.tokens)]
        lengths = [len(rollout.tokens) for rollout in rollouts.values()]
        assert lengths.count(1) >= 12 - 8  # had not begun
        assert any(1 < length < 20 for length in lengths)
        cut = [r for r in rollouts.values() if r.tokens != expected[r.prompt, r.sample].tokens]
        assert engine.metrics()["engine/cut"] >= len(cut) > 0
        assert all(rollout.truncated for rollout in cut)
        whole = [dataclasses.replace(r, may_be_cut=False) for r in many(policy, 1)]
        assert all(r.tokens == expected[r.prompt, r.sample].tokens for r in engine.generate(whole))
        engine.close()


@pytest.mark.end_to_end
def test_an_interrupt_ends_a_call_of_another_thread(policy):
    with stand_ins(policy, 1, token_s=0.05) as (server,):
        engine = connect(server, canary=False)
        engine.sync(policy, 0)
        timer = threading.Timer(0.2, engine.interrupt)
        timer.start()
        with pytest.raises(InterruptedError):
            list(engine.generate(many(policy, limit=100)))
        engine.close()
        engine.close()
        assert "servers" not in {thread.name for thread in threading.enumerate()}
        wait_until(lambda: not server.running)


def wait_until(holds, seconds=60.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_leaving_a_call_early_ends_its_requests(policy):
    with stand_ins(policy, 1, token_s=0.01) as (server,):
        engine = connect(server, canary=False)
        engine.sync(policy, 0)
        calls = engine.generate(many(policy, limit=100))
        next(calls)
        calls.close()
        wait_until(lambda: not server.running)
        assert len(list(engine.generate(many(policy, 1)))) == 5
        engine.close()


@pytest.mark.end_to_end
def test_the_rollouts_of_a_killed_server_are_sampled_by_the_others(policy, expected, caplog):
    with stand_ins(policy, 2, token_s=0.02) as (first, second):
        engine = connect(first, second)
        engine.sync(policy, 0)
        threading.Timer(0.3, second.kill).start()
        with caplog.at_level(logging.WARNING):
            rollouts = generate_all(engine, many(policy))
        assert {p: r.tokens for p, r in rollouts.items()} == {
            p: r.tokens for p, r in expected.items()
        }
        warnings = [record for record in caplog.records if second.url in record.getMessage()]
        assert len(warnings) == 1
        assert len(generate_all(engine, many(policy, 1))) == 5  # without another word
        assert len(caplog.records) == 1
        engine.close()


def test_a_killed_server_without_others_is_an_error_that_names_it(policy):
    with stand_ins(policy, 1, token_s=0.02) as (server,):
        engine = connect(server)
        engine.sync(policy, 0)
        threading.Timer(0.3, server.kill).start()
        with pytest.raises(ServerLostError, match=rf"{server.url} does not answer .*e3rl serve"):
            list(engine.generate(many(policy)))
        with pytest.raises(ServerLostError, match=server.url):
            engine.sync(policy, 1)
        engine.close()


def test_a_server_that_was_started_anew_is_taken_up_at_the_next_sync(policy, changed, caplog):
    with stand_ins(policy, 2) as (first, second):
        engine = connect(first, second)
        engine.sync(policy, 0)
        second.kill()
        assert len(generate_all(engine, many(policy))) == 20
        new = StandIn(policy, port=second.port)
        try:
            assert engine.metrics()["engine/servers"] == 2
            assert len(generate_all(engine, many(policy))) == 20
            assert new.calls["/inference/v1/generate"] == 0
            engine.sync(changed, 1)
            asked = new.calls["/inference/v1/generate"]
            assert f"{new.url} is back" in caplog.text
            assert largest_gap(changed, generate_all(engine, many(policy)).values()) < 1e-4
            assert new.calls["/inference/v1/generate"] > asked
        finally:
            new.kill()
        engine.close()


def test_nothing_is_taken_from_a_server_that_was_started_anew_between_sync_and_rollouts(policy):
    with stand_ins(policy, 1) as (server,):
        engine = connect(server)
        engine.sync(policy, 0)
        server.kill()
        new = StandIn(policy, port=server.port)
        try:
            with pytest.raises(ServerLostError, match="started anew"):
                list(engine.generate(many(policy)))
        finally:
            new.kill()
        engine.close()


def test_a_server_that_cannot_read_the_weights_is_an_error_that_says_how_to_share_them(policy):
    with stand_ins(policy, 2) as (first, second):
        second.takes_weights = False
        engine = connect(first, second)
        with pytest.raises(ServerLostError, match=r"engine\.weights\.folder"):
            engine.sync(policy, 0)
        engine.close()


def test_a_server_without_memory_for_the_weights_is_an_error_that_says_so(policy):
    with stand_ins(policy, 1) as (server,):
        server.takes_weights = False
        server.refusal = "CUDA out of memory. Tried to allocate 2.00 GiB"
        engine = connect(server)
        with pytest.raises(EngineMemoryError, match=r"sent to servers .*gpu_memory_utilization"):
            engine.sync(policy, 0)
        engine.close()


def test_an_address_without_a_server_is_an_error_at_once(policy, pair):
    engine = connect(pair[0], "http://127.0.0.1:9")
    with pytest.raises(ServerLostError, match=r"127\.0\.0\.1:9 does not answer .*e3rl serve"):
        engine.sync(policy, 0)
    engine.close()


@pytest.mark.end_to_end
def test_a_server_may_take_its_time_to_start(policy):
    with stand_ins(policy, 1) as (server,):
        port = server.port
    engine = connect(f"http://127.0.0.1:{port}", wait_s=30.0)
    late: list[StandIn] = []
    threading.Timer(0.5, lambda: late.append(StandIn(policy, port=port))).start()
    engine.sync(policy, 0)
    assert len(list(engine.generate(many(policy, 1)))) == 5
    engine.close()
    late[0].kill()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"model": "Other-123"}, "serves Other-123, the policy is Qwen2ForCausalLM-"),
        ({"dev_mode": False}, "VLLM_SERVER_DEV_MODE=1"),
        ({"scale_out": False}, "--enable-scale-out"),
    ],
)
def test_a_server_that_does_not_fit_is_an_error_before_weights_are_sent(policy, fault, message):
    with stand_ins(policy, 1) as (server,):
        vars(server).update(fault)
        engine = connect(server)
        with pytest.raises(UnfitServerError, match=message):
            engine.sync(policy, 0)
        assert server.read == []
        engine.close()


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model_config", "logprobs_mode", "raw_logprobs", "--logprobs-mode processed_logprobs"),
        ("scheduler_config", "enable_chunked_prefill", True, "--no-enable-chunked-prefill"),
    ],
)
def test_settings_of_a_server_that_no_run_can_use_are_errors(policy, section, key, value, message):
    with stand_ins(policy, 1) as (server,):
        server.config[section][key] = value
        engine = connect(server)
        with pytest.raises(UnfitServerError, match=message):
            engine.sync(policy, 0)
        engine.close()


def test_what_a_server_cannot_sample_is_an_error_with_the_remedy(policy, engine):
    with pytest.raises(
        ValueError,
        match=r"temperature 2\.5: .*; lower the settings of temperature, or",
    ):
        list(engine.generate(many(policy, tau=2.5)))
    with pytest.raises(ValueError, match="leaves no room"):
        list(engine.generate([request(policy, 0, 0, limit=300)]))


def test_a_temperature_that_servers_would_raise_is_refused(policy, engine):
    words = r"temperature 0\.009: vLLM's server .*; use 0 \(greedy\), or 0\.01 and more"
    with pytest.raises(ValueError, match=words):
        list(engine.generate(many(policy, tau=0.009)))
    for begin in (engine.sync, engine.hold):
        with pytest.raises(ValueError, match=words):
            begin(policy, 10**6, 0.009)
    for fine in (0.0, 0.01):
        assert len(list(engine.generate(many(policy, 1, tau=fine)))) == 5


def test_rollouts_need_a_sync_first(policy, pair):
    engine = connect(pair[0])
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(engine.generate(many(policy)))
    engine.close()


def test_log_probs_that_are_not_finite_are_an_error(policy, pair, engine, monkeypatch):
    right = pair[0]._choice
    for server in pair:
        monkeypatch.setattr(server, "_choice", lambda t, x, r: right(t, [-9999.0] * len(t), r))
    with pytest.raises(FloatingPointError, match="prompt row"):
        list(engine.generate(many(policy, 1)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"urls": []}, r"engine\.urls=\[\]"),
        ({"urls": ["node7:8000"]}, "http://HOST:PORT"),
        ({"urls": ["http://a:1", "http://a:1/"]}, "each server once"),
        ({"at_once": 0}, "engine.at_once=0"),
        ({"wait_s": -1.0}, "engine.wait_s=-1"),
        ({"deadline_s": 0.0}, "engine.deadline_s=0"),
        ({"canary_tolerance": 0.0}, "engine.canary_tolerance=0"),
    ],
)
def test_settings_that_make_no_sense_are_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        VLLMServerEngine(**{"urls": ["http://a:1"], "weights": FileTransfer(), **settings})

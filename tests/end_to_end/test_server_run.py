"""Training on two ranks with rollouts by vLLM's own servers, and servers that are killed."""

import importlib.util
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ranks_run import train
from test_run_on_two_ranks import check_one_course, run_on_ranks
from vllm_servers import VLLMServer, start

from e3rl.engines.base import RolloutRequest
from e3rl.engines.servers.client import ServerLostError
from e3rl.engines.servers.files import FileTransfer
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_build import INSTALL
from e3rl.engines.vllm_server import VLLMServerEngine
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy
from e3rl.seeds import derive_seed
from engine_requests import by_place, cut_at_stop, stopping

if importlib.util.find_spec("vllm") is None:
    pytest.skip(f"vLLM is not installed: {INSTALL}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
AHEAD = ("rollout.lookahead=1", "loss/correction=tis")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[VLLMServer]]:
    found = start(tmp_path_factory.mktemp("servers"), 2)
    yield found
    for server in found:
        server.end()


def requests(policy: Policy, n: int, limit: int) -> list[RolloutRequest]:
    prompts = ("12+34=?", "7*8=?", "(3+4)*5-6=?")
    return [
        RolloutRequest(
            prompt=place,
            sample=sample,
            prompt_tokens=tuple(policy.tokenizer(text)["input_ids"]),
            temperature=1.3,
            seed=derive_seed(place, sample),
            max_new_tokens=limit,
        )
        for place, text in enumerate(prompts)
        for sample in range(n)
    ]


def sampled(engine: VLLMEngine | VLLMServerEngine, wanted: Sequence[RolloutRequest]) -> object:
    rollouts = sorted(engine.generate(wanted), key=lambda r: (r.prompt, r.sample))
    return [(r.tokens, r.logprobs, r.text) for r in rollouts]


def test_two_ranks_learn_with_one_server_and_with_two_what_one_process_does_without(
    servers: Sequence[VLLMServer], tmp_path: Path
) -> None:
    steps = train(tmp_path / "alone", "engine=vllm", *AHEAD)
    for count in (1, 2):
        folder = tmp_path / f"servers{count}"
        urls = ",".join(server.url for server in servers[:count])
        ranks = run_on_ranks(
            folder, "trainer=ddp", "engine=vllm_server", f"engine.urls=[{urls}]", *AHEAD
        )
        check_one_course(ranks, steps)
        rows = [r for r in read_rows(folder / "run" / "metrics.jsonl") if r["kind"] == "train"]
        assert [row["policy/age"] for row in rows] == [0, 1, 1, 1, 1, 1]
        assert {row["engine/servers"] for row in rows} == {count}
        assert max(row["engine/canary_max"] for row in rows) < 1e-4
        gaps = [row["policy/mismatch_max"] for row in rows]
        assert gaps[0] < 1e-4 < max(gaps[1:])  # those of an update
        assert any(0.9 < row["policy/correction_ess"] < 1 for row in rows)  # 0: nothing to learn
    assert list(Path("/dev/shm").glob("*e3rl-weights-*")) == []


def test_two_ranks_three_steps_ahead_learn_what_one_process_does_without_servers(
    servers: Sequence[VLLMServer], tmp_path: Path
) -> None:
    ahead = ("rollout.lookahead=3", "loss/correction=tis", "validate_every=6")
    steps = train(tmp_path / "alone", "engine=vllm", *ahead)
    urls = ",".join(server.url for server in servers)
    ranks = run_on_ranks(
        tmp_path / "ranks", "trainer=ddp", "engine=vllm_server", f"engine.urls=[{urls}]", *ahead
    )
    check_one_course(ranks, steps)
    rows = [r for r in read_rows(tmp_path / "ranks/run/metrics.jsonl") if r["kind"] == "train"]
    assert [row["policy/age"] for row in rows] == [0, 1, 2, 3, 3, 3]
    assert list(Path("/dev/shm").glob("*e3rl-weights-*")) == []


def test_a_real_server_ends_rollouts_at_stop_strings_and_at_a_deadline_and_goes_idle(
    servers: Sequence[VLLMServer], policy: Policy
) -> None:
    server = servers[0]
    stopped = stopping(policy, "xed{4", "}", "+3")
    engine = VLLMServerEngine([server.url], FileTransfer(), progress=False)
    wanted = requests(policy, 16, 24)
    engine.sync(policy, 0)
    usual = by_place(engine.generate(wanted))
    engine.sync(stopped, 1)
    found = by_place(engine.generate(wanted))
    cut = {place: cut_at_stop(stopped, rollout) for place, rollout in usual.items()}
    assert {p: (r.tokens, r.truncated, r.text) for p, r in found.items()} == {
        p: (r.tokens, r.truncated, r.text) for p, r in cut.items()
    }
    assert any(len(cut[place].tokens) < len(usual[place].tokens) for place in cut)

    many = requests(policy, 150, 100)
    engine.sync(policy, 2)
    whole = by_place(engine.generate(many))
    engine.deadline_s = 0.3
    short = by_place(engine.generate(many))
    assert short.keys() == whole.keys()
    for place, rollout in short.items():
        assert rollout.tokens == whole[place].tokens[: len(rollout.tokens)]
    shorter = [r for place, r in short.items() if len(r.tokens) < len(whole[place].tokens)]
    assert engine.metrics()["engine/cut"] == len(shorter) > 50
    assert all(rollout.truncated for rollout in shorter)
    assert any(len(rollout.tokens) > 1 for rollout in shorter)

    engine.deadline_s = None
    threading.Timer(0.3, engine.interrupt).start()
    with pytest.raises(InterruptedError):
        list(engine.generate(many))
    engine.close()
    end = time.monotonic() + 10
    while (running := server.count("num_requests_running")) and time.monotonic() < end:
        time.sleep(0.05)
    assert running + server.count("num_requests_waiting") == 0
    again = VLLMServerEngine([server.url], FileTransfer(), progress=False)
    again.sync(policy, 3)
    assert by_place(again.generate(wanted)).keys() == usual.keys()
    assert all(r.tokens == usual[r.prompt, r.sample].tokens for r in again.generate(wanted))
    again.close()


def test_a_real_server_that_is_short_of_cache_counts_what_it_puts_off(
    policy: Policy, tmp_path: Path
) -> None:
    small = ("engine.settings.kv_cache_memory_bytes=1600000", "engine.settings.max_model_len=256")
    server = VLLMServer(tmp_path, None, *small).wait()
    engine = VLLMServerEngine([server.url], FileTransfer(), progress=False)
    engine.sync(policy, 0)
    assert len(list(engine.generate(requests(policy, 40, 100)))) == 120
    counted = engine.metrics()["engine/preempted"]
    assert counted == server.count("num_preemptions_total") > 0
    engine.close()
    server.end()


def test_servers_sample_what_the_engine_in_this_process_does_and_are_replaced_when_killed(
    servers: Sequence[VLLMServer], policy: Policy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = requests(policy, 16, 24)
    own = VLLMEngine(progress=False)
    own.sync(policy, 0)
    expected = sampled(own, wanted)
    own.close()

    left, lost = servers
    engine = VLLMServerEngine([left.url, lost.url], FileTransfer(), progress=False)
    engine.sync(policy, 0)
    assert sampled(engine, wanted) == expected

    many = requests(policy, 150, 100)
    whole = sampled(engine, many)
    threading.Timer(0.5, lost.kill).start()
    assert sampled(engine, many) == whole
    assert [r.getMessage() for r in caplog.records if lost.url in r.getMessage()]

    new = VLLMServer(tmp_path, lost.port).wait()
    left.kill()
    engine.sync(policy, 1)
    assert sampled(engine, wanted) == expected
    threading.Timer(0.5, new.kill).start()
    with pytest.raises(ServerLostError, match=new.url):
        sampled(engine, many)
    engine.close()

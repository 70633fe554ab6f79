"""Training with rollouts by vLLM servers that Ray starts, servers that are killed, and the end."""

import importlib.util
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest
from ranks_run import train
from test_run_on_two_ranks import check_one_course, run_on_ranks
from test_server_run import requests, sampled
from test_vllm_leftovers import MARK, gone_within

from e3rl.engines.servers.client import ServerLostError
from e3rl.engines.servers.files import FileTransfer
from e3rl.engines.servers.ray_actors import Placement, PlacementError
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_build import INSTALL
from e3rl.engines.vllm_ray import VLLMRayEngine
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy

ray = pytest.importorskip("ray", reason='pip install -e ".[ray]"')
if importlib.util.find_spec("vllm") is None:
    pytest.skip(f"vLLM is not installed: {INSTALL}", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
HALF = {"cpus": 0.5, "address": "local"}


@pytest.fixture(autouse=True)
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What all processes of a test have in their environment; none must be left."""
    found = uuid4().hex
    monkeypatch.setenv(MARK, found)
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield found
    assert gone_within(30, found) == []


def kill(url: str) -> None:
    """End the server at an address by SIGKILL, and return once it has ended."""
    port = url.rpartition(":")[2].encode()
    (server,) = (
        folder
        for folder in Path("/proc").glob("[0-9]*")
        if port in (words := words_of(folder)) and words[0] != b"sh"  # the shell that guards it
    )
    os.kill(int(server.name), signal.SIGKILL)
    while port in words_of(server):
        time.sleep(0.01)


def words_of(process: Path) -> list[bytes]:
    """The command line of a process, by its folder in /proc."""
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def urls(engine: VLLMRayEngine) -> Sequence[str]:
    return [server.url for server in engine._opened.servers]


def test_two_ranks_learn_with_servers_of_rays_what_one_process_does_without(
    tmp_path: Path, mark: str
) -> None:
    ahead = ("rollout.lookahead=1", "loss/correction=tis")
    steps = train(tmp_path / "alone", "engine=vllm", *ahead)
    for count in (1, 2):
        folder = tmp_path / f"servers{count}"
        placed = ("address=local", "cpus=0.5", f"servers={count}")
        ranks = run_on_ranks(
            folder,
            *("trainer=ddp", "engine=vllm_ray", *ahead),
            *(f"engine.placement.{setting}" for setting in placed),
        )
        check_one_course(ranks, steps)
        rows = [r for r in read_rows(folder / "run" / "metrics.jsonl") if r["kind"] == "train"]
        assert {row["engine/servers"] for row in rows} == {count}
        assert max(row["engine/canary_max"] for row in rows) < 1e-4
        assert gone_within(30, mark) == []
    assert list(Path("/dev/shm").glob("*e3rl-weights-*")) == []


def test_servers_of_rays_sample_what_this_process_does_and_are_started_anew_when_killed(
    policy: Policy, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    wanted = requests(policy, 16, 24)
    own = VLLMEngine(progress=False)
    own.sync(policy, 0)
    expected = sampled(own, wanted)
    own.close()

    stopping = signal.getsignal(signal.SIGTERM)
    engine = VLLMRayEngine(Placement(servers=2, **HALF), FileTransfer(), progress=False)
    with closing(engine):
        engine.plan_for(256)
        engine.sync(policy, 0)
        assert signal.getsignal(signal.SIGTERM) is stopping
        assert sampled(engine, wanted) == expected

        many = requests(policy, 150, 100)
        whole = sampled(engine, many)
        first, lost = urls(engine)
        threading.Timer(0.5, kill, [lost]).start()
        assert sampled(engine, many) == whole  # the other one samples its rollouts
        assert [r.getMessage() for r in caplog.records if lost in r.getMessage()]

        kill(first)
        engine.sync(policy, 1)  # none is left: it waits until one has come back
        assert not {first, lost} & set(urls(engine))
        assert sampled(engine, wanted) == expected

        end = time.monotonic() + 600
        version = 2
        while engine.metrics()["engine/servers"] < 2:
            assert time.monotonic() < end
            engine.sync(policy, version)
            version += 1
        assert sampled(engine, wanted) == expected

        for url in urls(engine):
            threading.Timer(0.5, kill, [url]).start()
        with pytest.raises(ServerLostError, match="Ray starts another one"):
            sampled(engine, many)
    assert gone_within(1, mark) == []
    assert not ray.is_initialized()


def test_what_a_cluster_does_not_have_is_an_error_that_names_it(policy: Policy) -> None:
    placement = Placement(servers=2, cpus=1000.0, address="local", place_s=0.5)
    with (
        closing(VLLMRayEngine(placement, FileTransfer(), progress=False)) as engine,
        pytest.raises(PlacementError, match=r"2 servers with 1000 CPUs and 0 GPUs each .* has \d"),
    ):
        engine.sync(policy, 0)

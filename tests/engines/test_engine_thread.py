"""Where an engine works: in one thread, on its device, by its own stream, and never racing."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded_llm import RecordedLLM, stand_in

from e3rl.engines import vllm_build
from e3rl.engines.engine_thread import EngineThread
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy.policy import Policy
from engine_requests import many


def test_calls_of_all_threads_are_made_in_one_and_raise_where_they_were_made():
    thread = EngineThread()
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: thread.call(threading.get_ident), range(20)))
    assert len(found) == 1
    assert threading.get_ident() not in found
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 // 0)
    assert thread.call(lambda: thread.call(threading.get_ident)) in found  # without waiting for it
    thread.close()
    thread.close()
    assert thread.call(threading.get_ident) == threading.get_ident()


def test_a_generator_runs_in_the_thread_as_far_as_it_is_asked_and_ends_there():
    thread, seen = EngineThread(), []

    def items() -> Iterator[int]:
        try:
            for number in range(3):
                seen.append((number, threading.get_ident()))
                yield number
        finally:
            seen.append(("closed", threading.get_ident()))

    ident = thread.call(threading.get_ident)
    given = thread.iterate(items())
    assert seen == []
    assert next(given) == 0
    assert seen == [(0, ident)]
    given.close()  # type: ignore[attr-defined]
    assert seen == [(0, ident), ("closed", ident)]
    assert list(thread.iterate(items())) == [0, 1, 2]
    thread.close()


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> RecordedLLM:
    return stand_in(monkeypatch)


def test_vllm_is_built_synced_sampled_from_and_ended_in_one_thread(
    policy: Policy, llm: RecordedLLM
) -> None:
    engine = VLLMEngine(VLLMSettings(sleep_level=1), canary=False, progress=False)
    engine.sync(policy, 0)
    rollouts = [*engine.generate(many(policy, 1))]
    with ThreadPoolExecutor(1, "ahead") as ahead:  # as look-ahead does
        rollouts += ahead.submit(lambda: list(engine.generate(many(policy, 1)))).result()
    engine.rest()
    engine.sync(policy, 1)
    engine.close()
    assert len(rollouts) == 10
    assert (llm.calls[0], llm.calls[-1]) == ("build", "shut down")
    assert {"reload_weights", "sample 5", "sleep 1", "wake weights"} <= set(llm.calls)
    assert len(llm.threads) == 1
    assert not llm.threads & {"MainThread", "ahead_0"}


class RecordedCuda:
    """Takes the place of what an engine calls of `torch.cuda`, which a CPU does not have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, record: Callable[[str], None]) -> None:
        for name in ("set_device", "set_stream", "synchronize"):
            monkeypatch.setattr(torch.cuda, name, self._recorder(name, record))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")

    def _recorder(self, name: str, record: Callable[[str], None]) -> Callable[[Any], None]:
        def call(what: Any) -> None:
            record(f"{name} {what} in {threading.current_thread().name.partition('_')[0]}")

        return call


def test_an_engine_on_a_gpu_has_a_stream_there_and_meets_the_trainer_before_and_after_a_sync(
    policy: Policy, llm: RecordedLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vllm")
    monkeypatch.setattr(Policy, "device", torch.device("cuda:3"))
    RecordedCuda(monkeypatch, llm.calls.append)
    engine = VLLMEngine(canary=False, progress=False)
    engine.sync(policy, 0)
    list(engine.generate(many(policy, 1)))
    engine.sync(policy, 1)
    engine.close()
    meeting = "synchronize cuda:3 in MainThread"
    sent = [meeting, "reload_weights", "reset_prefix_cache", meeting]
    assert llm.calls == [
        "set_device cuda:3 in engine",
        "set_stream a stream of cuda:3 in engine",
        "build",
        *sent,
        "sample 5",
        *sent,
        "shut down",
    ]


def test_a_process_alone_on_another_gpu_makes_a_group_that_vllm_can_join(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """vLLM's own launch is always on the first GPU."""
    made: list[bool] = []
    started: list[dict[str, Any]] = []

    def start(folder: str, arguments: dict[str, Any]) -> Any:
        started.append(arguments)
        return RecordedLLM()

    monkeypatch.setenv("E3RL_CACHE", str(tmp_path))
    monkeypatch.setattr(vllm_build, "_init_process_group", made.append)
    monkeypatch.setattr(vllm_build, "_start", start)
    monkeypatch.setattr(vllm_build, "release_memory", lambda: None)
    monkeypatch.setattr(vllm_build, "_world", SimpleNamespace(llms=set()))
    for number in (0, 3):
        monkeypatch.setattr(Policy, "device", torch.device(f"cuda:{number}"))
        vllm_build._world.llms.clear()
        vllm_build.build_llm(policy, VLLMSettings(), progress=False)
    assert made == [False, True]
    backends = [arguments.get("distributed_executor_backend") for arguments in started]
    assert backends == [None, "external_launcher"]

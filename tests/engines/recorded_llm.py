"""A stand-in for `vllm.LLM` that records what is called, and in which thread."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

import e3rl.engines.vllm as vllm_engine


class RecordedLLM:
    """What `VLLMEngine` calls of `vllm.LLM`, without weights; every request ends after a token."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[str] = set()
        states: dict[str, Any] = {}
        self.llm_engine = SimpleNamespace(
            output_processor=SimpleNamespace(request_states=states),
            vllm_config=SimpleNamespace(model_config=SimpleNamespace(max_model_len=256)),
            add_request=self.add_request,
            step=self.step,
            abort_request=lambda *_, **__: None,
            engine_core=SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler())),
        )
        self.waiting: list[str] = []

    @staticmethod
    def scheduler() -> SimpleNamespace:
        return SimpleNamespace(_preempt_request=lambda *_, **__: None)

    def record(self, call: str) -> None:
        self.calls.append(call)
        self.threads.add(threading.current_thread().name)

    def add_request(self, number: str, *_: Any) -> str:
        self.waiting.append(number)
        return number

    def step(self) -> list[Any]:
        done, self.waiting = self.waiting, []
        self.record(f"sample {len(done)}")
        logprobs = [{5: SimpleNamespace(logprob=-1.0)}]
        output = SimpleNamespace(token_ids=[5], logprobs=logprobs)
        return [SimpleNamespace(request_id=number, outputs=[output]) for number in done]

    def collective_rpc(self, method: str, kwargs: Any) -> None:
        assert len(dict(kwargs["weights_iterator"])) > 10
        self.record(method)

    def reset_prefix_cache(self) -> bool:
        self.record("reset_prefix_cache")
        return True

    def sleep(self, level: int) -> None:
        self.record(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.record(f"wake {' '.join(tags)}")

    def shut_down(self, *_: Any) -> None:
        self.record("shut down")


def stand_in(monkeypatch: pytest.MonkeyPatch) -> RecordedLLM:
    """Stands for what vLLM builds; works where vLLM is not installed."""
    made = RecordedLLM()

    def build(*_: Any) -> RecordedLLM:
        made.record("build")
        return made

    monkeypatch.setattr(vllm_engine, "check_installed", lambda: None)
    monkeypatch.setattr(vllm_engine, "build_llm", build)
    monkeypatch.setattr(vllm_engine, "shut_down", made.shut_down)
    monkeypatch.setattr(vllm_engine, "release_memory", lambda: None)
    monkeypatch.setattr(vllm_engine, "sampling_params", lambda *_: None)
    monkeypatch.setattr(vllm_engine, "share_prefixes", lambda *_: None)
    return made

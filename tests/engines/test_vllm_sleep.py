"""Sleep levels, which vLLM has on GPUs only: the order of calls, on an engine that records them."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from engine_requests import many

import e3rl.engines.vllm as vllm_engine
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy.policy import Policy


class RecordedLLM:
    """What `VLLMEngine` calls of `vllm.LLM`, without weights; every request ends after a token."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        states: dict[str, Any] = {}
        self.llm_engine = SimpleNamespace(
            output_processor=SimpleNamespace(request_states=states),
            vllm_config=SimpleNamespace(model_config=SimpleNamespace(max_model_len=256)),
            add_request=self.add_request,
            step=self.step,
            abort_request=lambda *_, **__: None,
        )
        self.waiting: list[str] = []

    def add_request(self, number: str, *_: Any) -> str:
        self.waiting.append(number)
        return number

    def step(self) -> list[Any]:
        done, self.waiting = self.waiting, []
        self.calls.append(f"sample {len(done)}")
        logprobs = [{5: SimpleNamespace(logprob=-1.0)}]
        output = SimpleNamespace(token_ids=[5], logprobs=logprobs)
        return [SimpleNamespace(request_id=number, outputs=[output]) for number in done]

    def collective_rpc(self, method: str, kwargs: Any) -> None:
        assert len(dict(kwargs["weights_iterator"])) > 10
        self.calls.append(method)

    def reset_prefix_cache(self) -> bool:
        self.calls.append("reset_prefix_cache")
        return True

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(f"wake {' '.join(tags)}")


SENT = ["wake weights", "reload_weights", "wake kv_cache", "reset_prefix_cache"]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> RecordedLLM:
    """Stands for what vLLM builds; works where vLLM is not installed."""
    made = RecordedLLM()
    monkeypatch.setattr(vllm_engine, "check_installed", lambda: None)
    monkeypatch.setattr(vllm_engine, "build_llm", lambda *_: made)
    monkeypatch.setattr(vllm_engine, "sampling_params", lambda *_: None)
    monkeypatch.setattr(vllm_engine, "share_prefixes", lambda *_: None)
    return made


def engine_of(level: int) -> VLLMEngine:
    return VLLMEngine(VLLMSettings(sleep_level=level), canary=False, progress=False)


@pytest.mark.parametrize("level", [1, 2])
def test_weights_are_awake_when_they_are_sent_and_the_cache_when_it_is_dropped(
    policy: Policy, llm: RecordedLLM, level: int
) -> None:
    engine, versions = engine_of(level), itertools.count()
    engine.sync(policy, next(versions))
    assert llm.calls == ["reload_weights", "reset_prefix_cache"]  # it is awake when it is built
    for _ in range(2):
        llm.calls.clear()
        assert len(list(engine.generate(many(policy, 1)))) == 5
        engine.rest()
        engine.rest()  # asleep already
        engine.sync(policy, next(versions))
        assert llm.calls == ["sample 5", f"sleep {level}", *SENT]


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1, ["wake weights", "wake kv_cache"]), (2, SENT)],
    ids=["level 1 has kept the weights", "level 2 has dropped them"],
)
def test_a_known_version_is_sent_again_only_where_sleep_has_dropped_it(
    policy: Policy, llm: RecordedLLM, level: int, expected: list[str]
) -> None:
    engine = engine_of(level)
    engine.sync(policy, 3)
    engine.rest()
    llm.calls.clear()
    engine.sync(policy, 3)
    assert llm.calls == expected
    assert len(list(engine.generate(many(policy, 1)))) == 5


def test_an_engine_that_sleeps_samples_nothing(policy: Policy, llm: RecordedLLM) -> None:
    engine = engine_of(1)
    engine.sync(policy, 0)
    engine.rest()
    with pytest.raises(RuntimeError, match=r"before engine\.sync"):
        list(engine.generate(many(policy, 1)))


def test_without_a_level_nothing_sleeps(policy: Policy, llm: RecordedLLM) -> None:
    engine = engine_of(0)
    engine.sync(policy, 0)
    engine.rest()
    engine.sync(policy, 0)
    assert llm.calls == ["reload_weights", "reset_prefix_cache"]

"""Sleep levels, which vLLM has on GPUs only: the order of calls, on an engine that records them."""

import itertools

import pytest
from recorded_llm import RecordedLLM, stand_in

from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.policy.policy import Policy
from engine_requests import many

SENT = ["wake weights", "reload_weights", "wake kv_cache", "reset_prefix_cache"]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> RecordedLLM:
    return stand_in(monkeypatch)


def engine_of(level: int) -> VLLMEngine:
    return VLLMEngine(VLLMSettings(sleep_level=level), canary=False, progress=False)


@pytest.mark.parametrize("level", [1, 2])
def test_weights_are_awake_when_they_are_sent_and_the_cache_when_it_is_dropped(
    policy: Policy, llm: RecordedLLM, level: int
) -> None:
    engine, versions = engine_of(level), itertools.count()
    engine.sync(policy, next(versions))
    assert llm.calls == [
        "build",
        "reload_weights",
        "reset_prefix_cache",
    ]  # it is awake when it is built
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
    assert llm.calls == ["build", "reload_weights", "reset_prefix_cache"]

"""Too little memory is told from weights that are refused: it ends the run, with a remedy."""

import pytest
import torch
from recorded_llm import RecordedLLM, stand_in

from e3rl.engines import vllm_parallel
from e3rl.engines.memory_errors import (
    DEVICE_FULL,
    NO_CACHE,
    EngineMemoryError,
    memory_remedy,
    name_memory_errors,
)
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_parallel import LOAD_ERRORS, load_on_all_ranks
from e3rl.policy.policy import Policy
from engine_requests import many

# As torch, its CPU allocator, CUDA libraries, worker processes and vLLM put it.
FULL = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: not enough memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("Worker failed with error 'CUDA out of memory.', please check the stack trace"),
    ValueError(
        "Free memory on device cuda:0 (3.0/80.0 GiB) on startup is less than desired GPU memory "
        "utilization (0.45, 36.0 GiB). Decrease GPU memory utilization"
    ),
    MemoryError(),
]
SMALL = [
    ValueError("No available memory for the cache blocks. Try increasing"),
    ValueError("(4.0 GiB KV cache is needed, which is larger than the available KV cache memory"),
]
REFUSED = [ValueError("size mismatch"), KeyError("lm_head"), RuntimeError("kept its prefix cache")]


@pytest.mark.parametrize("error", FULL + SMALL + REFUSED, ids=lambda e: str(e)[:30])
def test_errors_that_memory_is_the_cause_of_have_a_remedy_and_others_none(error: Exception):
    expected = DEVICE_FULL if error in FULL else NO_CACHE if error in SMALL else None
    assert memory_remedy(error) == expected
    wrapped = RuntimeError("the engine did not start")
    wrapped.__cause__ = error
    assert memory_remedy(wrapped) == expected


def test_what_an_engine_was_at_is_said_and_other_errors_pass():
    with (
        pytest.raises(EngineMemoryError, match=r"vLLM sampled \(CUDA out of memory.*trainer=fsdp2"),
        name_memory_errors("sampled"),
    ):
        raise FULL[0]
    with pytest.raises(ValueError, match="size mismatch"), name_memory_errors("sampled"):
        raise REFUSED[0]
    assert not issubclass(EngineMemoryError, LOAD_ERRORS)


def weights():
    return iter([(f"w{i}", torch.zeros(1)) for i in range(5)])


def test_all_ranks_end_where_one_has_too_little_memory(monkeypatch):
    def load(given):
        next(given)
        raise FULL[0]

    with pytest.raises(EngineMemoryError, match="engine of rank 0 took the weights") as caught:
        load_on_all_ranks(load, weights())
    assert caught.value.__cause__ is FULL[0]
    elsewhere = ("OutOfMemoryError('...')", DEVICE_FULL)
    monkeypatch.setattr(vllm_parallel, "all_gather", lambda own: [own, elsewhere])
    with pytest.raises(EngineMemoryError, match="engine of rank 1 took the weights"):
        load_on_all_ranks(lambda given: None, weights())

    def refuse(given):
        raise REFUSED[0]

    with pytest.raises(EngineMemoryError, match="rank 1"):  # this one would be built anew, alone
        load_on_all_ranks(refuse, weights())


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> RecordedLLM:
    return stand_in(monkeypatch)


def test_an_engine_without_memory_for_a_sync_is_not_built_anew(
    policy: Policy, llm: RecordedLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [FULL[0], REFUSED[0]]
    sync = llm.collective_rpc

    def short(method, kwargs):
        if errors:
            llm.record("refuse")
            raise errors.pop(0)
        sync(method, kwargs)

    monkeypatch.setattr(llm, "collective_rpc", short)
    engine = VLLMEngine(canary=False, progress=False)
    with pytest.raises(EngineMemoryError, match=r"engine\.settings\.sleep_level=1"):
        engine.sync(policy, 0)
    assert llm.calls == ["build", "refuse", "shut down"]
    llm.calls.clear()
    engine.sync(policy, 0)  # refused weights: another one, at once
    sent = ["reload_weights", "reset_prefix_cache"]
    assert llm.calls == ["build", "refuse", "shut down", "build", *sent]
    engine.close()


def test_an_error_without_words_is_told_by_its_name():
    with (
        pytest.raises(EngineMemoryError, match=r"vLLM sampled \(MemoryError\): policy, gradients"),
        name_memory_errors("sampled"),
    ):
        raise MemoryError


def test_after_a_second_failure_the_engine_is_closed_and_the_next_sync_builds_one(
    policy: Policy, llm: RecordedLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(method, kwargs):
        llm.record("refuse")
        raise REFUSED[0]

    engine = VLLMEngine(canary=False, progress=False)
    with monkeypatch.context() as broken:
        broken.setattr(llm, "collective_rpc", refuse)
        with pytest.raises(ValueError, match="size mismatch"):
            engine.sync(policy, 0)
    assert llm.calls == ["build", "refuse", "shut down"] * 2
    llm.calls.clear()
    engine.sync(policy, 0)
    assert llm.calls == ["build", "reload_weights", "reset_prefix_cache"]
    engine.close()


@pytest.mark.parametrize("tau", [9e-6, 1e-12])
def test_a_temperature_that_vllm_takes_for_greedy_is_refused(
    policy: Policy, llm: RecordedLLM, tau: float
) -> None:
    engine = VLLMEngine(canary=False, progress=False)
    words = rf"temperature {tau:g}: vLLM samples at another .*; use 0 \(greedy\), or 1e-05 and more"
    with pytest.raises(ValueError, match=words):
        engine.sync(policy, 0, tau)
    assert llm.calls == []  # before anything is built
    engine.sync(policy, 0)
    with pytest.raises(ValueError, match=words):
        list(engine.generate(many(policy, 1, tau=tau)))
    for fine in (0.0, 1e-5):
        assert len(list(engine.generate(many(policy, 1, tau=fine)))) == 5
    engine.close()

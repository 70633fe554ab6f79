import copy
import importlib.util
import multiprocessing
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

import e3rl.engines.vllm as vllm_engine
from e3rl.engines import vllm_build, vllm_parallel
from e3rl.engines.vllm import VLLMEngine
from e3rl.engines.vllm_build import INSTALL
from e3rl.engines.vllm_parallel import OtherRankError, load_on_all_ranks, place_engine
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.engines.weight_folders import MEMORY
from engine_requests import largest_gap, many

CPU = torch.device("cpu")
TOUCHED = ("RANK", "LOCAL_RANK", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")


def set_ranks(monkeypatch: pytest.MonkeyPatch, own: int, n: int) -> None:
    monkeypatch.setattr(vllm_parallel, "world_size", lambda: n)
    monkeypatch.setattr(vllm_parallel, "rank", lambda: own)


def test_alone_nothing_is_asked_for():
    before = dict(os.environ)
    with place_engine(1, CPU) as arguments:
        assert arguments == {}
        assert dict(os.environ) == before


def test_each_rank_has_an_engine_in_its_own_process_on_its_own_device(monkeypatch):
    set_ranks(monkeypatch, own=3, n=4)
    monkeypatch.setenv("LOCAL_RANK", "as Lightning left it")
    monkeypatch.delenv("RANK", raising=False)
    for device, local in ((CPU, "3"), (torch.device("cuda:1"), "1")):
        with place_engine(1, device) as arguments:
            assert arguments == {"distributed_executor_backend": "external_launcher"}
            assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("3", local)
        assert os.environ["LOCAL_RANK"] == "as Lightning left it"
        assert "RANK" not in os.environ


def test_a_process_alone_is_told_another_gpu_than_the_first(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    with place_engine(1, torch.device("cuda:3")) as arguments:
        assert arguments == {"distributed_executor_backend": "external_launcher"}
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("0", "3")
    assert os.environ["LOCAL_RANK"] == "0"
    with place_engine(1, torch.device("cuda:0")) as arguments:
        assert arguments == {}


def test_what_building_does_to_threads_and_environment_is_undone_after_an_error_too(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    before, threads = {name: os.environ.get(name) for name in TOUCHED}, torch.get_num_threads()
    try:
        place = place_engine(2, CPU)
        assert place.__enter__() == {"distributed_executor_backend": "mp"}
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
        os.environ["OMP_NUM_THREADS"] = "7"
        torch.set_num_threads(threads + 1)
        error = RuntimeError("no start")
        assert not place.__exit__(RuntimeError, error, None)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(threads)
    assert {name: os.environ.get(name) for name in TOUCHED} == before
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0|1")
    with place_engine(2, CPU):
        assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "0|1"


def test_ranks_that_share_an_engine_have_it_in_their_own_processes(monkeypatch):
    set_ranks(monkeypatch, own=1, n=2)
    with place_engine(2, torch.device("cuda:1")) as arguments:
        assert arguments == {"distributed_executor_backend": "external_launcher"}
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("1", "1")


def weights() -> Iterator[tuple[str, Tensor]]:
    return iter([(f"w{i}", torch.zeros(1)) for i in range(5)])


@pytest.mark.parametrize("error", [ValueError("wide"), AssertionError("long"), KeyError("name")])
def test_a_load_that_fails_takes_all_weights_before_it_raises(error):
    taken = []

    def load(given: Iterator[tuple[str, Tensor]]) -> None:
        next(given)
        raise error

    given = (taken.append(name) or (name, value) for name, value in weights())
    with pytest.raises(type(error)) as caught:
        load_on_all_ranks(load, given)
    assert caught.value is error
    assert taken == ["w0", "w1", "w2", "w3", "w4"]


def test_a_bug_is_not_taken_for_weights_that_do_not_fit():
    with pytest.raises(TypeError):
        load_on_all_ranks(lambda given: next(given) + 1, weights())  # type: ignore[arg-type, operator, func-returns-value]


def test_a_load_that_failed_elsewhere_fails_here_too(monkeypatch):
    elsewhere = ("KeyError('x')", None)
    monkeypatch.setattr(vllm_parallel, "all_gather", lambda own: [own, elsewhere])
    with pytest.raises(OtherRankError, match=r"rank 1 did not take the weights: KeyError\('x'\)"):
        load_on_all_ranks(lambda given: None, weights())
    assert issubclass(OtherRankError, vllm_parallel.LOAD_ERRORS)


needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=INSTALL)


@needs_vllm
def test_an_engine_sees_the_environment_of_its_own_start_not_of_an_earlier_one(monkeypatch):
    from vllm import envs

    seen = []

    def start(*arguments: object, **settings: object) -> SimpleNamespace:
        seen.append(envs.VLLM_CPU_OMP_THREADS_BIND)
        core = SimpleNamespace(_finalizer=SimpleNamespace(detach=lambda: None))
        return SimpleNamespace(llm_engine=SimpleNamespace(engine_core=core))

    monkeypatch.setattr("vllm.LLM", start)
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    envs.enable_envs_cache()  # as vLLM does at the end of a start
    try:
        with place_engine(2, CPU) as arguments:
            vllm_build._start("folder", arguments)
    finally:
        envs.disable_envs_cache()
    assert seen == ["nobind"]


@pytest.mark.slow
@needs_vllm
def test_two_processes_share_a_model_take_its_weights_and_end_with_the_engine(policy, monkeypatch):
    changed = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.05)
    engine = VLLMEngine(VLLMSettings(tensor_parallel_size=2, max_num_seqs=32), progress=False)
    others = set(multiprocessing.active_children())
    try:
        engine.sync(policy, 0)
        rollouts = list(engine.generate(many(policy)))
        assert largest_gap(policy, rollouts) < 1e-4
        assert largest_gap(changed, rollouts) > 1e-2
        workers = set(multiprocessing.active_children()) - others
        assert len(workers) == 2
        engine.sync(changed, 1)
        assert largest_gap(changed, engine.generate(many(policy))) < 1e-4
        # Weights that the workers cannot take: they are built anew.
        send, sent = vllm_engine.named_weights, []

        def too_short(model, tied_head):
            sent.append(model)
            for name, value in send(model, tied_head):
                yield name, value[:1] if len(sent) == 1 else value

        monkeypatch.setattr(vllm_engine, "named_weights", too_short)
        engine.sync(policy, 2)
        assert len(sent) == 2
        assert [list(folder.iterdir()) for folder in MEMORY.glob("e3rl-weights-*")] == [[]]
        assert largest_gap(policy, engine.generate(many(policy, n=1))) < 1e-4
        assert not any(worker.is_alive() for worker in workers)
    finally:
        engine.close()
    assert set(multiprocessing.active_children()) == others
    assert list(MEMORY.glob("e3rl-weights-*")) == []

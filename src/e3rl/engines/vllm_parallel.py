"""vLLM beside other ranks, and in several processes of its own.

With data-parallel ranks every rank has an engine of its own, in its process and on its device, or
shares one with its neighbours (`vllm_split`). Engines have process groups in common, which all
ranks make and leave together. So whatever one rank finds out that makes it build an engine anew
must be known to all, by `load_on_all_ranks`.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from e3rl.engines.memory_errors import EngineMemoryError, memory_remedy
from e3rl.process.distributed import all_gather, rank, world_size

Weights = Iterator[tuple[str, Tensor]]
# What vLLM's weight loaders raise for weights that they cannot take. Torch's out-of-memory is a
# RuntimeError too, and is told apart.
LOAD_ERRORS = (ValueError, AssertionError, KeyError, AttributeError, RuntimeError)


class OtherRankError(RuntimeError):
    """The vLLM of another rank did not take the weights."""


@contextmanager
def place_engine(tensor_parallel_size: int, device: torch.device) -> Iterator[dict[str, Any]]:
    """The arguments that `vllm.LLM` needs about processes, and the environment that goes with them.

    It runs in this process, on the device that the process trains on. vLLM's own choice would be
    the first one, for every rank and for a process alone on another device; only a launcher's
    variables tell it which. Tensor parallelism is over consecutive ranks; a process alone gets
    worker processes for it, whose effects on this one are undone.
    """
    ranks = world_size()
    environment: dict[str, str] = {}
    arguments: dict[str, Any] = {}
    if ranks > 1 or (device.index and tensor_parallel_size == 1):
        local = rank() if device.index is None else device.index
        environment = {"RANK": str(rank()), "LOCAL_RANK": str(local)}
        arguments = {"distributed_executor_backend": "external_launcher"}
    elif tensor_parallel_size > 1:
        # Without it vLLM wants a NUMA node for each worker.
        bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        environment = {"VLLM_CPU_OMP_THREADS_BIND": bind}
        arguments = {"distributed_executor_backend": "mp"}
    with _own_environment(environment):
        yield arguments


def load_on_all_ranks(load: Callable[[Weights], None], weights: Weights) -> None:
    """Let every rank load its engine's weights; where one cannot, all raise.

    Sharded weights are gathered by all ranks one after the other while they are taken from the
    iterator, so a rank that fails goes on taking them, for the sake of the others.

    Raises EngineMemoryError where one had too little memory, which no other engine would change;
    OtherRankError where only others failed.
    """
    error: Exception | None = None
    try:
        load(weights)
    except (*LOAD_ERRORS, MemoryError) as caught:
        error = caught
        for _ in weights:
            pass
    own = None if error is None else (repr(error), memory_remedy(error))
    failures = {at: failure for at, failure in enumerate(all_gather(own)) if failure is not None}
    for failed, (reason, remedy) in failures.items():
        if remedy is not None:
            raise EngineMemoryError(
                f"out of memory while the engine of rank {failed} took the weights ({reason}): "
                f"{remedy}"
            ) from error
    if error is not None:
        raise error
    for failed, (reason, _) in failures.items():
        raise OtherRankError(f"rank {failed} did not take the weights: {reason}")


@contextmanager
def _own_environment(changes: dict[str, str]) -> Iterator[None]:
    """Put variables into the environment, and back; also the thread counts that vLLM changes."""
    before = {name: os.environ.get(name) for name in (*changes, "OMP_NUM_THREADS")}
    threads = torch.get_num_threads()
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

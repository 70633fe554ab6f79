"""Sums and gathers over ranks; without a process group they return what they were given.

Messages of two threads of a rank must not meet: a thread beside the trainer's says `on_group`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import local
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

T = TypeVar("T")
_of_thread = local()  # .group, where the thread has one of its own


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if world_size() > 1 else 0


def new_group() -> dist.ProcessGroup | None:
    """A further group of all ranks, over their CPUs; all must call it. None for a single one."""
    return dist.new_group(backend="gloo") if world_size() > 1 else None


def consecutive_group(size: int) -> dist.ProcessGroup:
    """The group of so many consecutive ranks that this one belongs to; all ranks must call it."""
    own: dist.ProcessGroup = dist.new_subgroups(size, backend="gloo")[0]
    return own


@contextmanager
def on_group(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Have what this thread sums and gathers go over another group of all ranks."""
    before, _of_thread.group = _group(), group
    try:
        yield
    finally:
        _of_thread.group = before


def _group() -> dist.ProcessGroup | None:
    return getattr(_of_thread, "group", None)


def _device() -> str:
    """Where messages come from."""
    return "cuda" if dist.get_backend(_group()) == "nccl" else "cpu"


def all_sum(values: Sequence[float]) -> list[float]:
    """Element-wise sums over ranks, in float64; every rank gets the same numbers."""
    return _all_reduce(values, dist.ReduceOp.SUM)


def all_max(value: float) -> float:
    """The largest value on any rank."""
    return _all_reduce([value], dist.ReduceOp.MAX)[0]


def all_sum_and_max(
    sums: Sequence[float], largest: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Sums of some values and the largest of others over ranks, by one message."""
    if world_size() == 1:
        return [float(value) for value in sums], [float(value) for value in largest]
    own = torch.tensor([*sums, *largest], dtype=torch.float64, device=_device())
    found = [torch.empty_like(own) for _ in range(world_size())]
    dist.all_gather(found, own, group=_group())
    ranks = torch.stack(found)
    return ranks[:, : len(sums)].sum(dim=0).tolist(), ranks[:, len(sums) :].amax(dim=0).tolist()


def _all_reduce(values: Sequence[float], operation: Any) -> list[float]:
    """One message, where a gather of objects takes two and pickles them."""
    if world_size() == 1:
        return [float(value) for value in values]
    tensor = torch.tensor(list(values), dtype=torch.float64, device=_device())
    dist.all_reduce(tensor, operation, group=_group())
    return [float(value) for value in tensor.tolist()]


def all_gather(item: Any) -> list[Any]:
    """One picklable object per rank (of the thread's group), in rank order."""
    if world_size() == 1:
        return [item]
    items: list[Any] = [None] * dist.get_world_size(_group())
    dist.all_gather_object(items, item, group=_group())
    return items


def from_rank_0(make: Callable[[], T]) -> T:
    """What `make` returns on rank 0, where alone it is called; every rank gets it.

    Errors that the outside world may cause (RuntimeError, ValueError, OSError, MemoryError) are
    raised on all ranks alike, so that none waits for the others for ever.
    """
    if world_size() == 1:
        return make()
    found: tuple[T | None, Exception | None] = None, None
    if rank() == 0:
        try:
            found = make(), None
        except (RuntimeError, ValueError, OSError, MemoryError) as error:
            found = None, error
    of_rank_0: tuple[T, Exception | None] = all_gather(found)[0]
    if of_rank_0[1] is not None:
        raise of_rank_0[1]
    return of_rank_0[0]


def gather_full(value: Tensor) -> Tensor:
    """A tensor gathered from all ranks where it is sharded, itself otherwise."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def is_sharded(model: Any) -> bool:
    """Whether ranks hold parts of the parameters, so that using them takes all ranks."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())

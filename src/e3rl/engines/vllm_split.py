"""One vLLM engine over several ranks of the trainer, each of which has a part of every layer.

Every such rank has a scheduler of its own, and all of them must see the same requests in the same
steps. So ranks tell each other what they want sampled, all sample all of it, and each keeps what is
its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest
from e3rl.process.distributed import all_gather, consecutive_group, on_group, rank, world_size


def is_split(tensor_parallel_size: int) -> bool:
    """Whether an engine is split over ranks of the trainer, and not over processes of its own."""
    return tensor_parallel_size > 1 and world_size() > 1


def check_split(tensor_parallel_size: int, deadline_s: float | None) -> None:
    """Raise ValueError, with the remedy, where ranks cannot share an engine like this."""
    if not is_split(tensor_parallel_size):
        return
    if world_size() % tensor_parallel_size:
        raise ValueError(
            f"engine.settings.tensor_parallel_size={tensor_parallel_size} with {world_size()} "
            "ranks: as many ranks share an engine, so use a number of ranks that it divides, or "
            "tensor_parallel_size=1"
        )
    if deadline_s is not None:
        raise ValueError(
            f"engine.deadline_s={deadline_s} with engine.settings.tensor_parallel_size="
            f"{tensor_parallel_size} and several ranks: clocks of ranks differ, and those that "
            "share an engine must take the same steps; use deadline_s=null"
        )


class SharedRequests:
    """What this rank and the others of its engine want sampled.

    Args:
        size: consecutive ranks that share an engine. All ranks must make one of these.
    """

    def __init__(self, size: int) -> None:
        self._size, self._place = size, rank() % size
        self._group = consecutive_group(size)

    def gather(self, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
        """The requests of all of them, in one order, their prompts numbered anew."""
        with on_group(self._group):
            of_ranks = all_gather(list(requests))
        return [
            replace(request, prompt=request.prompt * self._size + place)
            for place, own in enumerate(of_ranks)
            for request in own
        ]

    def own(self, finished: Iterator[FinishedRequest]) -> Iterator[FinishedRequest]:
        """Those of this rank; goes on to the end for the sake of the others."""
        for each in finished:
            prompt, place = divmod(each.request.prompt, self._size)
            if place == self._place:
                yield replace(each, request=replace(each.request, prompt=prompt))

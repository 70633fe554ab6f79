"""How weights get from the trainer to servers: what every way offers."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from e3rl.engines.memory_errors import EngineMemoryError, memory_remedy
from e3rl.engines.servers.client import Server
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.weight_checks import Shapes

Weights = Iterator[tuple[str, Tensor]]


class WeightTransfer(Protocol):
    """One way; rank 0 alone uses it."""

    @property
    def server_arguments(self) -> Sequence[str]:
        """What a server has to be started with."""

    def send(
        self, fleet: Fleet, servers: Sequence[Server], weights: Weights, shapes: Shapes
    ) -> None:
        """Have servers that have paused load the weights; those that cannot are marked as lost.

        Args:
            weights: whole, one after the other.
            shapes: of all that `weights` is going to yield, in its order.

        Raises ServerLostError where all would be.
        """

    def hold(self, dtype: torch.dtype | None, weights: Weights) -> "HeldWeights":
        """Keep a copy of the weights in a precision, or in their own, to be sent by `send_held`."""

    def send_held(self, fleet: Fleet, servers: Sequence[Server], held: Any, shapes: Shapes) -> None:
        """As `send`, of what this way holds."""

    def close(self) -> None:
        """Release what `send` has opened; safe to call twice."""


class HeldWeights(Protocol):
    """A copy of a policy's weights."""

    def discard(self) -> None:
        """Let go of it; safe to call twice."""


def refuse_short_memory(error: Exception) -> None:
    """Raise EngineMemoryError for an error that memory is the cause of, which no other folder, port
    or server would change."""
    if memory_remedy(error) is not None:
        raise EngineMemoryError(
            f"out of memory while weights were sent to servers ({error}): start them with a lower "
            "engine.settings.gpu_memory_utilization (or kv_cache_memory_bytes), or split each over "
            "more GPUs (engine.settings.tensor_parallel_size)"
        ) from error


def use_up(weights: Weights) -> None:
    """Go through what is left: sharded weights are gathered by all ranks at the same time."""
    for _ in weights:
        pass

"""How weights get from the trainer to servers: what every way offers."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from torch import Tensor

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

    def close(self) -> None:
        """Release what `send` has opened; safe to call twice."""

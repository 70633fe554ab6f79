"""Weights to servers over NCCL, from GPU to GPU, by vLLM's own transfer classes.

Rank 0 of the trainer is rank 0 of a process group; the processes of all servers come behind it, in
the order of the servers. Not run yet: NCCL needs GPUs. What is said to vLLM and servers is tested.
"""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from e3rl.engines.servers.client import Server, ServerLostError, UnfitServerError
from e3rl.engines.servers.files import common_dtype
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.servers.transfer import Weights, refuse_short_memory
from e3rl.engines.weight_checks import Shapes


class NCCLTransfer:
    """Weights by a broadcast from the trainer's GPU to those of all servers.

    A server that is lost takes the process group with it: the next `send` makes another one.

    Args:
        port: of rank 0's machine, where the processes meet.
        address: of that machine, as servers reach it; None: of the interface towards them.
    """

    server_arguments = ("--weight-transfer-config", '{"backend": "nccl"}')

    def __init__(self, port: int = 29600, address: str | None = None) -> None:
        if not 0 < port < 2**16:
            raise ValueError(f"engine.weights.port={port}: use a port in 1 ... 65535")
        self.port = port
        self.address = address
        self._engine: Any = None  # vLLM's
        self._client: FanOut | None = None

    def send(
        self, fleet: Fleet, servers: Sequence[Server], weights: Weights, shapes: Shapes
    ) -> None:
        """Broadcast the weights in the precision of the servers.

        Raises:
            UnfitServerError: for servers without GPUs, or that differ in their precision.
            ServerLostError: where any of the servers fails.
        """
        dtype = common_dtype(servers)
        if dtype is None or not all(each.facts and not each.facts.on_cpu for each in servers):
            raise UnfitServerError(
                "engine/weights=nccl: all servers must run on GPUs, with one precision; "
                "engine/weights=files takes any"
            )
        if self._client is not None and self._client.servers != list(servers):
            self.close()
        try:
            if self._client is None:
                self._open(servers)
            self._engine.source = Source(weights, shapes, dtype)
            self._engine.send_weights()
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            self._engine = self._client = None  # a group with a missing member never ends
            refuse_short_memory(error)
            raise ServerLostError(f"servers did not take weights over NCCL: {error}") from error

    def hold(self, dtype: torch.dtype | None, weights: Weights) -> "HeldTensors":
        """Copy the weights to the memory of this machine, in a precision, or in their own."""
        return HeldTensors(
            [(name, value.detach().to("cpu", dtype, copy=True)) for name, value in weights]
        )

    def send_held(
        self, fleet: Fleet, servers: Sequence[Server], held: "HeldTensors", shapes: Shapes
    ) -> None:
        """Broadcast copies, each of which goes to this process's GPU before."""
        on_gpu = ((name, value.to("cuda")) for name, value in held.tensors)
        self.send(fleet, servers, on_gpu, shapes)

    def close(self) -> None:
        """Leave the process group."""
        engine, client = self._engine, self._client
        self._engine = self._client = None
        if engine is not None and client is not None:
            client.shutdown_weight_transfer_engine()
            engine.shutdown()

    def _open(self, servers: Sequence[Server]) -> None:
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        self._client = FanOut(servers)
        meeting = NCCLTrainerInitInfo(
            master_address=self.address or address_towards([server.url for server in servers]),
            master_port=self.port,
            world_size=1 + self._client.devices,
            rank=0,
        )
        empty = Source(iter(()), {}, torch.float32)
        self._engine = WeightTransferTrainerFactory.trainer_init(
            meeting, client=self._client, source=empty
        )


def address_towards(urls: Sequence[str]) -> str:
    """This machine's address on the interface by which it reaches servers; of other machines, where
    there are any. Nothing is sent."""
    found = []
    for url in urls:
        place = urlsplit(url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((place.hostname or "localhost", place.port or 80))
            found.append(str(towards.getsockname()[0]))
    return next((each for each in found if not each.startswith("127.")), found[0])


@dataclass
class HeldTensors:
    """Weights in the memory of this machine."""

    tensors: list[tuple[str, Tensor]]

    def discard(self) -> None:
        """Let the tensors go."""
        self.tensors = []


class FanOut:
    """vLLM's `VLLMWeightSyncClient` for several servers, which all do the same at the same time."""

    def __init__(
        self, servers: Sequence[Server], connect: Callable[[str], Any] | None = None
    ) -> None:
        if connect is None:
            from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient

            connect = HTTPVLLMWeightSyncClient
        self.servers = list(servers)
        self._clients = [connect(server.url) for server in servers]
        self._sizes = [server.facts.devices if server.facts else 0 for server in servers]

    @property
    def devices(self) -> int:
        """Processes of all servers together."""
        return sum(self._sizes)

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Each server's processes follow those of the servers before it."""
        first = init_info["rank_offset"]
        offsets = [first + sum(self._sizes[:place]) for place in range(len(self._sizes))]
        own = [{**init_info, "rank_offset": offset} for offset in offsets]
        self._all("init_weight_transfer_engine", own)

    def start_weight_update(self) -> None:
        self._all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._all("update_weights", [update_info] * len(self._clients))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all("finish_weight_update", [weight_version] * len(self._clients))

    def shutdown_weight_transfer_engine(self) -> None:
        self._all("shutdown_weight_transfer_engine")

    def _all(self, name: str, arguments: Sequence[Any] | None = None) -> None:
        given = [()] * len(self._clients) if arguments is None else [(each,) for each in arguments]
        with ThreadPoolExecutor(len(self._clients)) as pool:
            calls = [
                pool.submit(getattr(client, name), *own)
                for client, own in zip(self._clients, given, strict=True)
            ]
        for call in calls:
            call.result()


class Source:
    """vLLM's `WeightSource` of weights that are sent in a precision."""

    def __init__(self, weights: Weights, shapes: Shapes, dtype: torch.dtype) -> None:
        self._weights, self._shapes, self._dtype = weights, shapes, dtype

    def metadata(self) -> list[Any]:
        """Names, precisions and shapes of what the iterator is going to yield."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self._dtype, shape) for name, shape in self._shapes.items()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, value.detach().to(self._dtype)) for name, value in self._weights)

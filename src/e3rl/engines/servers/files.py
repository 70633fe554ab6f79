"""Weights to servers by files: written once, read by all of them, deleted afterwards."""

from collections.abc import Sequence
from pathlib import Path

import torch

from e3rl.engines.servers.client import Server, ServerLostError
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.servers.transfer import refuse_short_memory
from e3rl.engines.weight_checks import Shapes
from e3rl.engines.weight_folders import HeldFolder, WeightFolders, Weights


class FileTransfer:
    """Weights in safetensors files of a folder that servers can read.

    Args:
        folder: on a file system that the trainer and all servers share; None: in the memory of
            this machine, for servers that run on it.
    """

    server_arguments = ()

    def __init__(self, folder: str | None = None) -> None:
        self._folders = WeightFolders(folder)

    def send(
        self, fleet: Fleet, servers: Sequence[Server], weights: Weights, shapes: Shapes
    ) -> None:
        """Write the weights in the precision of the servers, and have all of them read.

        A server that cannot is marked as lost. vLLM takes its old weights down before it reads,
        so such a server has to be started anew.
        """
        held = self.hold(common_dtype(servers), weights)
        try:
            self.send_held(fleet, servers, held, shapes)
        finally:
            held.discard()

    def hold(self, dtype: torch.dtype | None, weights: Weights) -> HeldFolder:
        """Write the weights in a precision, or in their own.

        Raises OSError where there is no room.
        """
        return self._folders.hold(dtype, weights)

    def send_held(
        self, fleet: Fleet, servers: Sequence[Server], held: HeldFolder, shapes: Shapes
    ) -> None:
        """Have servers read a folder of weights."""
        fleet.on_each(servers, lambda server: self._read(server, held.path))

    def close(self) -> None:
        """Leave nothing of what was sent or held."""
        self._folders.close()

    async def _read(self, server: Server, folder: Path) -> None:
        # Servers start with made-up weights, which vLLM does not read from files.
        overrides = {"load_config": {"load_format": "safetensors"}}
        await server.call_workers("update_config", overrides=overrides)
        try:
            await server.call_workers("reload_weights", weights_path=str(folder))
        except ServerLostError as error:
            refuse_short_memory(error)
            raise ServerLostError(
                f"{error}\nIt could not read the weights in {folder}: give "
                "engine.weights.folder=FOLDER on a file system that the trainer and all servers "
                "share, and start the server anew"
            ) from error


def common_dtype(servers: Sequence[Server]) -> torch.dtype | None:
    """The precision of all servers; None where they differ."""
    names = {server.facts.dtype for server in servers if server.facts is not None}
    if len(names) != 1:
        return None
    dtype: torch.dtype = getattr(torch, names.pop())
    return dtype

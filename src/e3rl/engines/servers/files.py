"""Weights to servers by files: written once, read by all of them, deleted afterwards."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from e3rl.engines.servers.client import Server, ServerLostError
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.servers.transfer import Weights, refuse_short_memory
from e3rl.engines.weight_checks import HEAD, Shapes
from e3rl.process.leftovers import remove_if_killed

FILE_BYTES = 4 * 2**30  # of a file, and so of the memory that writing takes
MEMORY = Path("/dev/shm")  # a folder in the memory of the machine


class FileTransfer:
    """Weights in safetensors files of a folder that servers can read.

    Args:
        folder: on a file system that the trainer and all servers share; None: in the memory of
            this machine, for servers that run on it.
    """

    server_arguments = ()

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._own: Path | None = None  # this process's part of it

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

    def hold(self, dtype: torch.dtype | None, weights: Weights) -> "HeldFolder":
        """Write the weights in a precision, or in their own.

        Raises OSError where there is no room.
        """
        return HeldFolder(self._write(weights, dtype))

    def send_held(
        self, fleet: Fleet, servers: Sequence[Server], held: "HeldFolder", shapes: Shapes
    ) -> None:
        """Have servers read a folder of weights."""
        fleet.on_each(servers, lambda server: self._read(server, held.path))

    def close(self) -> None:
        """Leave nothing of what was sent or held."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None

    def _write(self, weights: Weights, dtype: torch.dtype | None) -> Path:
        """A folder with the weights, which appears under its name once it is complete."""
        if self._own is None:
            self._own = self._begin()
        part = Path(tempfile.mkdtemp(prefix=".weights-", dir=self._own))
        part.chmod(0o755)  # servers may run under another name
        try:
            for number, tensors in enumerate(_in_files(weights, dtype)):
                save_file(tensors, part / f"model-{number:05d}.safetensors")
            return part.rename(part.with_name(part.name.removeprefix(".")))
        except SafetensorError as error:
            raise OSError(f"weights could not be written to {self._own}: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)  # where it is not complete

    def _begin(self) -> Path:
        """A folder of this process, of which nothing is left when it is killed either."""
        base = self.folder or (str(MEMORY) if MEMORY.is_dir() else None)
        if base is not None:
            base = os.path.abspath(base)  # servers have other working folders
            os.makedirs(base, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="e3rl-weights-", dir=base))
        own.chmod(0o755)
        remove_if_killed(str(own))
        return own

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


@dataclass(frozen=True)
class HeldFolder:
    """Weights in files of a folder."""

    path: Path

    def discard(self) -> None:
        """Delete it; safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


def common_dtype(servers: Sequence[Server]) -> torch.dtype | None:
    """The precision of all servers; None where they differ."""
    names = {server.facts.dtype for server in servers if server.facts is not None}
    if len(names) != 1:
        return None
    dtype: torch.dtype = getattr(torch, names.pop())
    return dtype


def _in_files(weights: Weights, dtype: torch.dtype | None) -> Iterator[dict[str, Tensor]]:
    """The tensors of one file after the other."""
    tensors: dict[str, Tensor] = {}
    size = 0
    for name, value in weights:
        # A head that shares the embedding's memory needs some of its own in a file.
        kept = value.detach().to("cpu", dtype or value.dtype, copy=name == HEAD).contiguous()
        if tensors and size + kept.nbytes > FILE_BYTES:
            yield tensors
            tensors, size = {}, 0
        tensors[name] = kept
        size += kept.nbytes
    yield tensors

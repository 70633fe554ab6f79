"""Weights in safetensors files that other processes read, in folders that nothing outlives."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from e3rl.engines.weight_checks import HEAD
from e3rl.process.leftovers import remove_if_killed

FILE_BYTES = 4 * 2**30  # of a file, and so of the memory that writing takes
MEMORY = Path("/dev/shm")  # a folder in the memory of the machine

Weights = Iterator[tuple[str, Tensor]]


@dataclass(frozen=True)
class HeldFolder:
    """Weights in files of a folder."""

    path: Path

    def discard(self) -> None:
        """Delete it; safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)


class WeightFolders:
    """Folders of one process, each with a policy's weights.

    Args:
        folder: where they go; None: in the memory of this machine, or where temporary files go
            should it have too little of it for the first weights.
    """

    def __init__(self, folder: str | None = None) -> None:
        self.folder = folder
        self._own: Path | None = None  # this process's part of it

    def hold(
        self, dtype: torch.dtype | None, weights: Weights, size: int | None = None
    ) -> HeldFolder:
        """Write weights in a precision, or in their own; the folder appears once it is complete.

        Args:
            dtype: of the files.
            weights: whole, one after the other.
            size: bytes that they take, where that is known.

        Raises OSError where there is no room.
        """
        if self._own is None:
            self._own = self._begin(size or 0)
        part = Path(tempfile.mkdtemp(prefix=".weights-", dir=self._own))
        part.chmod(0o755)  # servers may run under another name
        try:
            for number, tensors in enumerate(_in_files(weights, dtype)):
                save_file(tensors, part / f"model-{number:05d}.safetensors")
            return HeldFolder(part.rename(part.with_name(part.name.removeprefix("."))))
        except SafetensorError as error:
            raise OSError(
                f"weights could not be written to {self._own}: {error}. Make room there (a "
                "container's /dev/shm is small unless it is started with --shm-size)"
            ) from error
        finally:
            shutil.rmtree(part, ignore_errors=True)  # where it is not complete

    def close(self) -> None:
        """Leave nothing of what was held; safe to call twice."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)
            self._own = None

    def _begin(self, size: int) -> Path:
        """A folder of this process, of which nothing is left when it is killed either."""
        base = self.folder
        if base is None and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > size:
            base = str(MEMORY)
        if base is not None:
            base = os.path.abspath(base)  # servers have other working folders
            os.makedirs(base, exist_ok=True)
        own = Path(tempfile.mkdtemp(prefix="e3rl-weights-", dir=base))
        own.chmod(0o755)
        remove_if_killed(str(own))
        return own


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

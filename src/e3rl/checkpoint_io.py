"""Checkpoints that are written whole or not at all, and that notice when they were damaged.

File and checksum are written beside their final places, flushed to disk and only then renamed.
Only tensors and primitives go in, so loading never unpickles code.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.plugins import CheckpointIO

from e3rl.checkpoint_files import DamagedCheckpointError, checksum_file, damage, sha256


class AtomicCheckpointIO(CheckpointIO):
    """torch.save with an atomic rename, fsync and a checksum (Lightning plug-in)."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write `path` and `path`.sha256; a failure leaves what was there before untouched.

        Raises OSError (for instance on a full disk), after removing its own temporary files.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(".*.tmp"):  # of a process that was killed in here
            leftover.unlink()
        sums = checksum_file(path)
        draft, sums_draft = (path.with_name(f".{p.name}.tmp") for p in (path, sums))
        try:
            with draft.open("wb") as file:
                with uninterrupted():
                    torch.save(checkpoint, file)
                _to_disk(file)
            with sums_draft.open("w") as text:
                text.write(f"{sha256(draft)}  {path.name}\n")
                _to_disk(text)
            os.replace(draft, path)
            os.replace(sums_draft, sums)
        finally:
            draft.unlink(missing_ok=True)
            sums_draft.unlink(missing_ok=True)
        _sync_folder(path.parent)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Raises DamagedCheckpointError, naming file and reason, before torch reads the bytes."""
        if reason := damage(Path(path)):
            raise DamagedCheckpointError(f"checkpoint {path}: {reason}")
        loaded = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        assert isinstance(loaded, dict)
        return loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        checksum_file(Path(path)).unlink(missing_ok=True)
        Path(path).unlink(missing_ok=True)


def _to_disk(file: IO[Any]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: inside torch.save it would surface as an error about file positions."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)

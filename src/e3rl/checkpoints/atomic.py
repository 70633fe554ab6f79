"""Checkpoints that are written whole or not at all, and that notice when they were damaged.

File and checksum are written beside their final places, flushed to disk and only then renamed.
Only tensors and primitives go in, so loading never unpickles code.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from torch import Tensor

from e3rl.checkpoints.durable import (
    defer_interrupts,
    flush_to_disk,
    swap,
    sync_folder,
    unwrap_os_error,
)
from e3rl.checkpoints.files import (
    DamagedCheckpointError,
    checksum_file,
    clear_drafts,
    draft_of,
    find_damage,
    remove,
    sha256,
)
from e3rl.checkpoints.sharded import WEIGHTS, merge_tensors, read_rest, read_tensors


class AtomicCheckpointIO(CheckpointIO):
    """torch.save with an atomic rename, fsync and a checksum (Lightning plug-in)."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write `path` and `path`.sha256; a failure leaves what was there before untouched.

        Where a file is replaced, both sums are listed meanwhile, so that there is a sound one at
        every moment.

        Raises OSError (for instance on a full disk), after removing its own temporary files.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_drafts(path.parent)
        sums = checksum_file(path)
        draft, sums_draft = draft_of(path), draft_of(sums)
        try:
            with draft.open("wb") as file:
                with defer_interrupts(), unwrap_os_error():
                    torch.save(checkpoint, file)
                flush_to_disk(file)
            line = f"{sha256(draft)}  {path.name}\n"
            if path.is_file() and sums.is_file():
                _write_text(sums_draft, line + sums.read_text())
                os.replace(sums_draft, sums)
            _write_text(sums_draft, line)
            if path.is_dir():  # which has its sums within
                os.replace(sums_draft, sums)
                swap(draft, path)
                shutil.rmtree(draft)
            else:
                os.replace(draft, path)
                os.replace(sums_draft, sums)
        finally:
            draft.unlink(missing_ok=True)
            sums_draft.unlink(missing_ok=True)
        sync_folder(path.parent)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Also one of shards, put together as if a single process had written it.

        Raises DamagedCheckpointError, naming file and reason, before torch reads the bytes.
        """
        check_sound(Path(path))
        if Path(path).is_dir():
            return merge_tensors(read_tensors(Path(path)), read_rest(Path(path)))
        loaded = torch.load(path, map_location=map_location or "cpu", weights_only=True)
        assert isinstance(loaded, dict)
        return loaded

    def remove_checkpoint(self, path: str | Path) -> None:
        remove(Path(path))


def _write_text(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        flush_to_disk(file)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The module's weights by name, without the states of optimisers where they can be left out.

    Raises DamagedCheckpointError, naming file and reason.
    """
    if not path.is_dir():
        weights: dict[str, Tensor] = AtomicCheckpointIO().load_checkpoint(path)["state_dict"]
        return weights
    check_sound(path)
    tensors = read_tensors(path, WEIGHTS)
    return {name.removeprefix(WEIGHTS): value for name, value in tensors.items()}


def check_sound(path: Path) -> None:
    """Raise DamagedCheckpointError, naming file and reason, unless all bytes are as written."""
    if reason := find_damage(path):
        raise DamagedCheckpointError(f"checkpoint {path}: {reason}")

"""Checkpoints that are written whole or not at all, and that notice when they were damaged.

A file is written beside its final place, flushed to disk and renamed; its SHA-256 follows in a
small file of its own. A checkpoint without a matching sum was interrupted or altered: it is named
and the one before it is used. Only tensors and primitives go in, so loading never unpickles code.
"""

import hashlib
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO

PATTERN = re.compile(r"step=(\d+)\.ckpt$")
CHUNK = 1 << 20


class DamagedCheckpointError(RuntimeError):
    """A checkpoint whose bytes are not the ones that were written."""


class AtomicCheckpointIO(CheckpointIO):
    """torch.save with an atomic rename, fsync and a checksum (Lightning plug-in)."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write `path` and `path`.sha256; a failure leaves what was there before untouched.

        Raises OSError (for instance on a full disk), after removing its own temporary file.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.tmp")
        try:
            with draft.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            total = sha256(draft)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        sum_draft = path.with_name(f".{path.name}.sha256.tmp")
        sum_draft.write_text(f"{total}  {path.name}\n")
        os.replace(sum_draft, checksum_file(path))
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


def checksum_file(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def damage(path: Path) -> str:
    """Why a checkpoint cannot be trusted; empty where it can."""
    if not path.is_file():
        return "there is no such file"
    if not checksum_file(path).is_file():
        return "it has no checksum, so writing it was interrupted"
    written = checksum_file(path).read_text().split()
    if not written or written[0] != sha256(path):
        return "its checksum does not match, so it was altered or cut short"
    return ""


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest step first, damaged ones included."""
    return sorted((p for p in folder.glob("*.ckpt") if PATTERN.search(p.name)), key=step_of)


def step_of(path: Path) -> int:
    """Finished rollout steps of a checkpoint, from its name."""
    found = PATTERN.search(path.name)
    if not found:
        raise ValueError(f"{path.name} is not named like step=000064.ckpt")
    return int(found[1])


def newest_sound(path: Path) -> Path:
    """`path` itself if it is sound, or else the newest sound checkpoint before it.

    `path` may also be the folder of checkpoints. Damaged ones are named in a warning each.

    Raises FileNotFoundError where there is none, and DamagedCheckpointError where all are damaged.
    """
    if path.is_dir():
        candidates = checkpoints(path)
    elif path.exists() and PATTERN.search(path.name):
        candidates = [p for p in checkpoints(path.parent) if step_of(p) <= step_of(path)]
    else:
        candidates = [path] if path.exists() else []
    if not candidates:
        raise FileNotFoundError(
            f"no checkpoint at {path}: give a file like step=000064.ckpt or a run's checkpoints "
            "folder, or leave ckpt_path out to start a new run"
        )
    for candidate in reversed(candidates):
        reason = damage(candidate)
        if not reason:
            return candidate
        warnings.warn(f"passing over checkpoint {candidate}: {reason}", stacklevel=2)
    raise DamagedCheckpointError(
        f"no sound checkpoint at {path}: all {len(candidates)} are damaged"
    )


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

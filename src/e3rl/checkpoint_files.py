"""The checkpoints of a run folder: their names and checksums, and which one can be trusted.

A checkpoint `step-000064.ckpt` has its SHA-256 beside it in `step-000064.ckpt.sha256`. Without a
matching sum its writing was interrupted, or it was altered: it is named and the one before it is
used. No torch here, since the main module reads this and reward workers import that again.
"""

import hashlib
import re
import warnings
from pathlib import Path

PATTERN = re.compile(r"step-(\d+)\.ckpt$")
CHUNK = 1 << 20


class DamagedCheckpointError(RuntimeError):
    """A checkpoint whose bytes are not the ones that were written."""


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
    sums = checksum_file(path)
    if not sums.is_file():
        return f"{sums.name} is not beside it: its writing was interrupted, or it was copied alone"
    written = sums.read_text(errors="replace").split()
    if not written or written[0] != sha256(path):
        return "its checksum does not match: it was altered or cut short"
    return ""


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints of a folder, oldest step first, damaged ones included."""
    return sorted((p for p in folder.glob("*.ckpt") if PATTERN.search(p.name)), key=step_of)


def step_of(path: Path) -> int:
    """Finished rollout steps of a checkpoint, from its name."""
    found = PATTERN.search(path.name)
    if not found:
        raise ValueError(f"{path.name} is not named like step-000064.ckpt")
    return int(found[1])


def newest_sound(path: Path) -> Path:
    """`path` itself if it is sound, or else the newest sound checkpoint before it.

    `path` may also be the folder of checkpoints. Damaged ones are named in a warning each.

    Raises FileNotFoundError where there is none, and DamagedCheckpointError, naming each and its
    damage, where all are damaged.
    """
    if path.is_dir():
        candidates = checkpoints(path)
    elif path.exists() and PATTERN.search(path.name):
        candidates = [p for p in checkpoints(path.parent) if step_of(p) <= step_of(path)]
    else:
        candidates = [path] if path.exists() else []
    if not candidates:
        raise FileNotFoundError(
            f"no checkpoint at {path}: give a file like step-000064.ckpt or a run's checkpoints "
            "folder, or leave ckpt_path out to start a new run"
        )
    reasons = []
    for candidate in reversed(candidates):
        reason = damage(candidate)
        if not reason:
            return candidate
        warnings.warn(f"passing over checkpoint {candidate}: {reason}", stacklevel=2)
        reasons.append(f"\n  - {candidate.name}: {reason}")
    raise DamagedCheckpointError(f"no sound checkpoint at {path}:{''.join(reasons)}")

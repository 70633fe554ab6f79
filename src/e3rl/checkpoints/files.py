"""The checkpoints of a run folder: their names and checksums, and which one can be trusted.

A checkpoint `step-000064.ckpt` is a file, with its SHA-256 beside it in `step-000064.ckpt.sha256`,
or a folder of what several processes wrote, with the sum of each file within it in
`manifest.sha256`. Without a matching sum its writing was interrupted, or it was altered: it is
named and the one before it is used. Sums are in the form that `sha256sum -c` reads. No torch here,
since the main module reads this and reward workers import that again.
"""

import hashlib
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

PATTERN = re.compile(r"step-(\d+)\.ckpt$")
MANIFEST = "manifest.sha256"
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


def draft_of(path: Path) -> Path:
    """Where a checkpoint is while it is written: no name that is ever read."""
    return path.with_name(f".{path.name}.tmp")


def clear_drafts(folder: Path) -> None:
    """Remove what processes left behind that were killed while they wrote or removed."""
    for leftover in folder.glob(".*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()


def manifest(sums: Mapping[str, str]) -> str:
    """Text of a manifest, from checksums by file name."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def find_damage(path: Path) -> str:
    """Why a checkpoint cannot be trusted; empty where it can."""
    if path.is_dir():
        reason = find_missing(path)
        return reason or find_altered(path, sorted(_manifest_of(path)))
    if not path.is_file():
        return "there is no such file"
    sums = checksum_file(path)
    if not sums.is_file():
        return f"{sums.name} is not beside it: its writing was interrupted, or it was copied alone"
    written = sums.read_text(errors="replace").splitlines()
    if sha256(path) not in [line.split()[0] for line in written if line.strip()]:
        return "its checksum does not match: it was altered or cut short"
    return ""


def find_missing(folder: Path) -> str:
    """Why a checkpoint of several files is not the whole of them; empty where it is."""
    if not (folder / MANIFEST).is_file():
        return f"{MANIFEST} is not in it: its writing was interrupted, or it was copied in part"
    listed = _manifest_of(folder)
    present = {file.name for file in folder.iterdir()} - {MANIFEST}
    if missing := sorted(listed.keys() - present):
        return f"{missing[0]} is missing from it"
    if unknown := sorted(present - listed.keys()):
        return f"{unknown[0]} is not in its {MANIFEST}, which was altered or cut short"
    return "" if listed else f"its {MANIFEST} is empty"


def find_altered(folder: Path, names: Sequence[str]) -> str:
    """Which of some files of a complete checkpoint is not as it was written; empty for none."""
    listed = _manifest_of(folder)
    for name in names:
        if listed[name] != sha256(folder / name):
            return f"the checksum of {name} does not match: it was altered or cut short"
    return ""


def _manifest_of(folder: Path) -> dict[str, str]:
    """Checksums by file name, of the lines that are whole."""
    lines = (folder / MANIFEST).read_text(errors="replace").splitlines()
    pairs = [line.split("  ", 1) for line in lines]
    return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}


def remove(path: Path) -> None:
    """Remove a checkpoint with its checksums; one that is not there is no error.

    A folder is renamed first, so that a kill leaves no part of it under a checkpoint's name.
    """
    checksum_file(path).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path.replace(path.with_name(f".{path.name}.removed.tmp")))
    else:
        path.unlink(missing_ok=True)


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
    if path.is_dir() and not PATTERN.search(path.name):
        candidates = checkpoints(path)
    elif path.exists() and PATTERN.search(path.name):
        candidates = [p for p in checkpoints(path.parent) if step_of(p) <= step_of(path)]
    else:
        candidates = [path] if path.exists() else []
    if not candidates:
        raise FileNotFoundError(
            f"no checkpoint at {path}: give a file like step-000064.ckpt or a run's checkpoints "
            "folder"
        )
    reasons = []
    for candidate in reversed(candidates):
        reason = find_damage(candidate)
        if not reason:
            return candidate
        warnings.warn(f"passing over checkpoint {candidate}: {reason}", stacklevel=2)
        reasons.append(f"\n  - {candidate.name}: {reason}")
    raise DamagedCheckpointError(f"no sound checkpoint at {path}:{''.join(reasons)}")

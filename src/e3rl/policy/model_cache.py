"""Model folders that a machine makes once and keeps: each is there whole or not at all."""

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from e3rl.checkpoints.durable import flush_to_disk, sync_folder
from e3rl.checkpoints.files import draft_of
from e3rl.process.environment import cache_folder


class ModelFileError(ValueError):
    """A model that cannot be made ready: its file is missing, altered, or none that is known."""


def models_folder() -> Path:
    return cache_folder() / "models"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder, made where it is not there yet.

    Of several processes, such as the ranks of a run, one makes it while the others wait. It is
    made under another name, so that a kill leaves nothing behind that looks finished.

    Args:
        folder: below `models_folder()`.
        make: fills an empty folder.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = draft_of(folder)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if folder.is_dir():
            return folder
        if draft.exists():
            shutil.rmtree(draft)
        draft.mkdir()
        try:
            make(draft)
            _sync_all(draft)
            draft.replace(folder)
            sync_folder(folder.parent)
        finally:
            if draft.exists():
                shutil.rmtree(draft)
    return folder


def _sync_all(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                flush_to_disk(file)
    sync_folder(folder)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise ModelFileError where a disk has less room than `needed` bytes."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ModelFileError(
            f"{what} takes {needed / 2**30:.2g} GiB in {folder.parent}, and {free / 2**30:.2g} GiB "
            f"are free there: make room, or set E3RL_CACHE to a folder on another disk"
        )

"""Writing files such that what has a name is whole, whatever ends the process or the machine."""

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux


def swap(one: Path, other: Path) -> None:
    """Let two files or folders of a file system change names, at once.

    Where the system cannot (NFS, other systems than Linux) there is a moment without `other`.
    """
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    places = os.fsencode(one), os.fsencode(other)
    if rename and rename(AT_FDCWD, places[0], AT_FDCWD, places[1], RENAME_EXCHANGE) == 0:
        return
    aside = one.with_name(f"{one.name}.swapped.tmp")
    os.replace(other, aside)
    os.replace(one, other)
    os.replace(aside, one)


def flush_to_disk(file: IO[Any]) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def unwrap_os_error() -> Iterator[None]:
    """Raise the OSError that is behind an error of torch's, where there is one.

    Its savers end their file after a failed write, and fail once more, about its position.
    """
    try:
        yield
    except RuntimeError as error:
        if (cause := find_os_error(error)) is None:
            raise
        raise cause from None


def find_os_error(error: BaseException) -> OSError | None:
    """The OSError that an error is, or that it came from."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait: inside torch's savers it would surface as another error, such as one about
    file positions."""
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


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file that a kill leaves as it was or whole; others tell by it how far a run is."""
    draft = path.with_name(f".{path.name}")
    with draft.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        flush_to_disk(file)
    draft.replace(path)
    sync_folder(path.parent)

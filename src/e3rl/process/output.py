"""Where output goes: places that cannot be written, and readers that are gone, as that of
`e3rl train --help | head -3`."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


class NoPlaceError(ValueError):
    """A place for output that cannot be written."""


@contextmanager
def ending_with_its_reader() -> Iterator[None]:
    """Where the reader of the standard output has gone, end the process without a word.

    Its exit code is then the one of a process that SIGPIPE ended, as shells have it of other
    programs. Broken pipes to anybody else stay the errors that they are.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None where the process was started without one
                sys.stdout.flush()
    except BrokenPipeError:
        if not is_unread():
            raise
        leave_unread()


def is_unread() -> bool:
    """Whether the standard output is a pipe that nobody reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def leave_unread() -> NoReturn:
    """End the process; what was still to be written goes nowhere, or Python would complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    raise SystemExit(128 + signal.SIGPIPE)


def check_file(option: str, path: Path) -> None:
    """Raise NoPlaceError, naming the option, where no file can be written; folders may be made."""
    if path.is_dir():
        raise NoPlaceError(f"{option}{path} is a folder: give the file a name in it")
    if path.exists() and not os.access(path, os.W_OK):
        raise NoPlaceError(f"{option}{path} may not be written to: give another name")
    _check_writable(f"{option}{path}", path.parent)


def check_folder(option: str, path: Path) -> None:
    """Raise NoPlaceError, naming the option, where no folder is or can be made for files."""
    _check_writable(f"{option}{path}", path)


def _check_writable(named: str, folder: Path) -> None:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise NoPlaceError(f"{named}: {there} is a file and no folder; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise NoPlaceError(f"{named}: {there} may not be written to; choose another place")

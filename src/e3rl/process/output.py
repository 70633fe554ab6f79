"""Output that nobody reads any more, as that of `e3rl train --help | head -3`."""

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


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

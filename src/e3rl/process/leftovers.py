"""A temporary folder that does not outlive its process, whatever ends that."""

import atexit
import os
import subprocess
import sys

# Reads until the process that it looks after ends; one that ends in order says so first.
CARETAKER = "import shutil, sys; sys.stdin.buffer.read() or shutil.rmtree(sys.argv[1], True)"
_looked_after: dict[str, int] = {}  # folder -> process that it belongs to


def remove_if_killed(folder: str) -> None:
    """Have a folder of this process removed where `kill -9` leaves nobody to do so.

    Where the process ends in order, the folder is its own to remove. A small process of its own
    session waits for that, so that signals to this one's group do not reach it. A second call for
    the same folder does nothing.
    """
    if _looked_after.get(folder) == os.getpid():
        return
    _looked_after[folder] = os.getpid()
    caretaker = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", CARETAKER, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    atexit.register(_dismiss, caretaker, os.getpid())


def _dismiss(caretaker: "subprocess.Popen[bytes]", owner: int) -> None:
    if os.getpid() == owner:
        caretaker.communicate(b"the process has ended in order")

"""A folder that goes when its process is killed, and stays its own where that ends in order."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

CHILD = """
import os, signal, sys
from e3rl.process.leftovers import remove_if_killed
remove_if_killed(sys.argv[1])
remove_if_killed(sys.argv[1])
print("ready", flush=True)
{end}
"""
ENDS = {
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", False),
    "left at once": ("os._exit(1)", False),
    "ended in order": ("", True),
    "an error": ("raise RuntimeError", True),
}


def waiting_for(folder: Path) -> list[str]:
    """Processes that were told of a folder."""
    listed = subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True).stdout
    return [line for line in listed.splitlines() if str(folder) in line]


@pytest.mark.parametrize("end", ENDS)
def test_a_folder_goes_where_nobody_is_left_to_remove_it(end: str, tmp_path: Path) -> None:
    folder, (line, stays) = tmp_path / "made", ENDS[end]
    folder.mkdir()
    (folder / "socket").touch()
    child = subprocess.run(
        [sys.executable, "-c", CHILD.format(end=line), str(folder)], capture_output=True, text=True
    )
    assert child.stdout == "ready\n"
    until = time.monotonic() + (1 if stays else 20)
    while folder.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    assert folder.is_dir() == stays
    until = time.monotonic() + 20
    while (left := waiting_for(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []

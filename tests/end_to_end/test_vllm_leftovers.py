"""What a process that samples with vLLM leaves behind, and says, when it does not end well."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from vllm_process import ports_listened_on

from e3rl.engines.vllm_build import INSTALL

if importlib.util.find_spec("vllm") is None:
    pytest.skip(f"vLLM is not installed: {INSTALL}", allow_module_level=True)
if not Path("/proc/self/environ").exists():
    pytest.skip(
        "looks at processes through /proc, which this system lacks", allow_module_level=True
    )

pytestmark = pytest.mark.slow

MARK = "E3RL_TEST_MARK"


def marked(mark: str) -> list[str]:
    """Command lines of the live processes that carry the mark in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in environment:
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # ended meanwhile, or somebody else's
    return found


def gone_within(seconds: float, mark: str) -> list[str]:
    """What of the marked processes is still there then."""
    end = time.monotonic() + seconds
    while (alive := marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return alive


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of processes that ended by an exception and by SIGKILL; they run side by side."""
    folders = {end: tmp_path_factory.mktemp(end) for end in ("raise", "kill")}
    mark = uuid4().hex
    processes = {}
    for end, folder in folders.items():
        (folder / "temporary").mkdir()
        own = {"TMPDIR": str(folder / "temporary"), MARK: f"{mark}-{end}"}
        processes[end] = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("vllm_process.py")),
                end,
                folder / "told",
            ],
            stdout=(folder / "stdout").open("w"),
            stderr=(folder / "stderr").open("w"),
            env=os.environ | own,
        )
    for end, process in processes.items():
        (folders[end] / "code").write_text(str(process.wait(timeout=300)))
        (folders[end] / "alive").write_text("\n".join(gone_within(15, f"{mark}-{end}")))
    return folders


@pytest.mark.parametrize(("end", "code"), [("raise", 1), ("kill", -signal.SIGKILL)])
def test_no_process_port_or_file_is_left(ended: dict[str, Path], end: str, code: int) -> None:
    folder = ended[end]
    told = json.loads((folder / "told").read_text())  # written in the middle of a call
    assert int((folder / "code").read_text()) == code
    assert (folder / "alive").read_text() == ""
    assert told["tokens"] > 0
    assert told["ports"]  # gloo's, so that there is something to leave
    assert not set(told["ports"]) & set(ports_listened_on())
    assert sorted((folder / "temporary").rglob("*")) == []
    assert not [file for file in told["shared"] if Path(file).exists()]


def test_nothing_is_said_but_the_exception(ended: dict[str, Path]) -> None:
    assert (ended["kill"] / "stdout").read_text() == (ended["kill"] / "stderr").read_text() == ""
    assert (ended["raise"] / "stdout").read_text() == ""
    lines = (ended["raise"] / "stderr").read_text().splitlines()
    lines = [line.removeprefix("[rank0]: ") for line in lines]
    assert lines[0] == "Traceback (most recent call last):"
    assert all(line.startswith("  ") for line in lines[1:-1])
    assert lines[-1] == "RuntimeError: in the middle of a call"

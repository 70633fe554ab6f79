"""A side as a process: when it wrote its rows, its processor seconds, its peak memory."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.1


@dataclass(frozen=True)
class Seen:
    """A row that a side wrote, when, and what its processes had taken of the processor by then.

    `machine_s` is what all processes of the machine had taken of it, and its host had taken away.
    """

    row: dict[str, Any]
    at: float  # seconds since the start of the process
    cpu_s: float
    peak_gib: float
    machine_s: float


def watch(
    command: Sequence[str],
    rows: Path,
    counts: Callable[[Mapping[str, Any]], bool],
    environment: Mapping[str, str],
    log: Path,
) -> list[Seen]:
    """Run a command to its end and note every row that it adds to a file and that counts.

    The time of a row is the file's time of change. Processor seconds are those of the process and
    all that it started, user and system. The peak is the sum of what each of these processes had
    resident at most, so pages that they share count more than once.

    Raises RuntimeError, with the end of its output, where the command fails.
    """
    seen: list[Seen] = []
    peaks: dict[int, int] = {}
    started = time.time()
    with log.open("w") as output:
        side = subprocess.Popen(
            list(command), stdout=output, stderr=output, env={**os.environ, **environment}
        )
        while side.poll() is None:
            time.sleep(POLL_S)
            tree = processes(side.pid)
            for pid in tree:
                peaks[pid] = max(peaks.get(pid, 0), peak_kib(pid))
            written = [row for row in read_rows(rows) if counts(row)]
            for row in written[len(seen) :]:
                at, gib = rows.stat().st_mtime - started, sum(peaks.values()) / 2**20
                own = sum(map(cpu_seconds, tree))
                seen.append(Seen(row, at, own, gib, machine_seconds()))
    if side.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{log.read_text()[-3000:]}")
    return seen


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file that may still be growing, or may not be there yet."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def processes(root: int) -> list[int]:
    """A process and all that descend from it; those that have ended meanwhile are left out."""
    tree = [root]
    for pid in tree:
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
            tree += [int(c) for t in threads for c in (t / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return tree


def peak_kib(pid: int) -> int:
    """Largest resident memory that a process has had; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of the children it has waited for; 0 where it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS


def machine_seconds() -> float:
    """Processor time in which the machine was not idle, what other machines stole included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    user, nice, system, _idle, _waiting, irq, softirq, stolen = fields
    return (user + nice + system + irq + softirq + stolen) / TICKS

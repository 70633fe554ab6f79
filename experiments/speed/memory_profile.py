"""Where a side's memory goes: by process and kind at its largest, beside what its imports take.

    python experiments/speed/memory_profile.py [--work "large vocabulary, 43M"] [--engine vllm]

One run of each side, a step after the first one. Pages that processes share are counted once
(proportional set size). Writes memory.json beside this file and the table in README.md; --table
only the latter.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from report import insert
from sides import HERE, ROOT, Setting, make_inputs, run_e3rl, run_trl
from watch import processes
from works import SHAPES, WORKS, Shape, Work

POLL_S = 0.05
MIB = 2**20
KINDS = {"Pss_Anon": "own", "Pss_File": "files", "Pss_Shmem": "shared"}
IMPORTS = {
    "trl": ("import torch", "import torch, transformers, trl; from trl import GRPOTrainer"),
    "e3rl": (
        "import torch",
        "import torch, transformers, lightning; import e3rl.runs.run",
        "import torch, transformers, lightning, vllm; import e3rl.runs.run; from vllm import LLM",
    ),
}


def memory_of(pid: int) -> dict[str, float]:
    """MiB of a process by kind, with its share of what it shares; nothing where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return {kind: found[name] for name, kind in KINDS.items() if name in found}


def name_of(pid: int) -> str:
    try:
        told = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return "ended"
    for sign, name in (
        ("resource_tracker", "helpers of multiprocessing"),
        ("forkserver", "helpers of multiprocessing"),
        ("spawn_main", "reward workers"),
    ):
        if sign in told:
            return name
    return "main process"


class Watcher:
    """The moment at which all processes that this one has started take most."""

    def __init__(self, root: int) -> None:
        self.root = root
        self.largest: dict[str, Any] = {"mib": 0.0}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(POLL_S):
            parts: dict[str, dict[str, float]] = {}
            for pid in processes(self.root)[1:]:
                place = parts.setdefault(name_of(pid), {})
                for kind, mib in memory_of(pid).items():
                    place[kind] = place.get(kind, 0.0) + mib
            total = sum(sum(kinds.values()) for kinds in parts.values())
            if total > self.largest["mib"]:
                self.largest = {"mib": total, "parts": parts, "at": time.time()}


def imports(python: Path, lines: tuple[str, ...]) -> list[dict[str, Any]]:
    """MiB of a process after each of some imports."""
    found = []
    for line in lines:
        code = f"{line}\nprint(open('/proc/self/smaps_rollup').read())"
        told = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={
                "PYTHONPATH": str(ROOT / "src"),
                "PATH": "/usr/bin:/bin",
                "HOME": str(Path.home()),
            },
        )
        rows = [row.split() for row in told.stdout.splitlines()]
        mib = {row[0][:-1]: int(row[1]) / 1024 for row in rows if len(row) == 3 and row[2] == "kB"}
        found.append({"imports": line, "mib": sum(mib[name] for name in KINDS)})
    return found


def weights_mib(shape: Shape) -> float:
    """Of a policy in float32, its output layer tied to the embedding."""
    own = shape.hidden // shape.heads * shape.key_value_heads
    attention = 2 * shape.hidden * shape.hidden + 2 * shape.hidden * own
    layer = attention + 3 * shape.hidden * shape.inner + 2 * shape.hidden
    return 4 * (shape.layers * layer + shape.vocabulary * shape.hidden + shape.hidden) / MIB


def profile(work: Work, engine: str, folder: Path, trl: Path) -> dict[str, Any]:
    setting = Setting(folder, trl / "bin" / "python")
    inputs = make_inputs(folder / "inputs", work)
    found: dict[str, Any] = {"work": work.name, "engine": engine, "sides": {}}
    found["weights_mib"] = weights_mib(SHAPES[work.policy])
    for side, python in (("trl", setting.trl_python), ("e3rl", Path(sys.executable))):
        place = folder / "runs" / f"memory-{side}-{time.time_ns()}"
        place.parent.mkdir(exist_ok=True)
        with Watcher(os.getpid()) as seen:
            if side == "trl":
                run_trl(setting, work, inputs, place)
            else:
                run_e3rl(setting, work, inputs, engine, place)
        found["sides"][side] = seen.largest | {"imports": imports(python, IMPORTS[side])}
        print(side, json.dumps(found["sides"][side]), flush=True)
    return found


def table(found: dict[str, Any]) -> str:
    """Markdown of memory.json."""
    lines = ["| side | at its largest | of it | MiB |", "| :--- | ---: | :--- | ---: |"]
    for side, seen in found["sides"].items():
        name, whole = {"trl": "TRL"}.get(side, side), f"{seen['mib']:.0f}"
        for step in seen["imports"]:
            lines.append(
                f"| {name} | {whole} | a process after `{step['imports']}` | {step['mib']:.0f} |"
            )
            name = whole = ""
        for process, kinds in seen["parts"].items():
            told = ", ".join(f"{kind} {mib:.0f}" for kind, mib in kinds.items())
            lines.append(f"| | | {process} ({told}) | {sum(kinds.values()):.0f} |")
    lines.append("")
    lines.append(
        f"{found['work']}, one run each. Weights take {found['weights_mib']:.0f} MiB, gradients as "
        "much, AdamW's moments twice as much. Own: memory of the process; files: code and weights "
        "that are mapped; shared: between processes."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", default="large vocabulary, 43M", choices=[w.name for w in WORKS])
    parser.add_argument("--engine", default="vllm")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "speed")
    parser.add_argument("--trl", type=Path, default=ROOT / "build" / "trl")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    path = HERE / "memory.json"
    if not args.table:
        work = next(work for work in WORKS if work.name == args.work)
        found = profile(replace(work, steps=1), args.engine, args.folder, args.trl)
        path.write_text(json.dumps(found, indent=1) + "\n")
    readme = HERE / "README.md"
    readme.write_text(insert(readme.read_text(), "memory", table(json.loads(path.read_text()))))


if __name__ == "__main__":
    main()

"""Does a run of many steps keep its memory, its handles and its pace?

    .venv/bin/python experiments/long_run/measure.py [--steps 2000] [--prompts 32] [--engine vllm]
        [OVERRIDE ...]
    .venv/bin/python experiments/long_run/measure.py --table

The public command with the embedded default, looked at from outside once a second. What is seen
goes to results.json, by engine and in hundredths of the run, and from there into the README.
Further arguments are overrides.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "src"), str(HERE.parent / "speed")]
from report import insert  # noqa: E402
from watch import processes, read_rows  # noqa: E402

from e3rl.statistics.student import t_bound  # noqa: E402

LOOK_S = 1.0
WARM = 0.1  # of the run: caches fill, and nothing of it counts
AIM_MIB = 1.0  # in 100 steps, at most
PROBLEMS = 1024
RESULTS = HERE / "results.json"
Look = dict[str, float]


def look(root: int) -> Look:
    """Memory, handles and threads of the main process, how many others it has, and their memory."""
    place = Path(f"/proc/{root}")
    status = dict(
        line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line
    )
    others = [pid for pid in processes(root) if pid != root]
    return {
        "rss_mib": int(status["VmRSS"].split()[0]) / 1024,
        "others_mib": sum(map(resident_mib, others)),
        "handles": len(list((place / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "children": len(others),
    }


def resident_mib(pid: int) -> float:
    """0 of a process that has just ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(steps: int, prompts: int, engine: str, overrides: list[str], folder: Path) -> list[Look]:
    """Looks, with the step and the time of each; raises RuntimeError where the run fails."""
    per_epoch = PROBLEMS // prompts
    epochs = -(-steps // per_epoch)
    command = [
        *(sys.executable, "-m", "e3rl", "train", f"hydra.run.dir={folder}", "control=null"),
        *(f"engine={engine}", f"prompts_per_step={prompts}", f"data.train.size={PROBLEMS}"),
        *(f"epochs={epochs}", f"validate_every={per_epoch * epochs // 4}", "checkpoint_every=20"),
        *("data.validation.size=64", "trainer.enable_progress_bar=false", "name=long", *overrides),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_WAIT_POLICY": "PASSIVE"}
    log = folder.with_suffix(".log")
    seen, began = [], time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env)
        while process.poll() is None:
            time.sleep(LOOK_S)
            try:
                found = look(process.pid)
            except (FileNotFoundError, ProcessLookupError, KeyError):
                continue  # it has just ended
            ledger = folder / "prompts.jsonl"
            step = ledger.read_bytes().count(b"\n") if ledger.is_file() else 0
            seen.append(found | {"step": step, "at_s": time.monotonic() - began})
    if process.returncode:
        raise RuntimeError(f"the run failed:\n{log.read_text()[-2000:]}")
    return seen


def summarize(seen: list[Look], folder: Path, prompts: int) -> dict[str, Any]:
    """The run in hundredths, and figures over all but its first tenth."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if row["kind"] == "train"]
    steps = len(rows)
    during = [each for each in seen if WARM * steps < each["step"] < steps]
    seconds = [row["time/step_s"] for row in rows]
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.jsonl")}
    cpu = [row["resources/cpu_s"] for row in rows]
    tenth = steps // 10
    return {
        "steps": steps,
        "prompts": prompts,
        "looks": len(during),
        "memory": slope([x["step"] for x in during], [x["rss_mib"] for x in during]),
        "others": slope([x["step"] for x in during], [x["others_mib"] for x in during]),
        "handles": [during[0]["handles"], during[-1]["handles"]],
        "threads": [during[0]["threads"], during[-1]["threads"]],
        "children": [during[0]["children"], during[-1]["children"]],
        "step_s": [median(seconds[tenth : 2 * tenth]), median(seconds[-tenth:])],
        "cpu_s": [median(cpu[tenth : 2 * tenth]), median(cpu[-tenth:])],
        "length": [
            mean(row["rollout/tokens"] for row in part)
            for part in (rows[tenth : 2 * tenth], rows[-tenth:])
        ],
        "ledger_kib_per_step": sum(sizes.values()) / 1024 / steps,
        "curve": [
            {k: round(v, 2) for k, v in during[i].items()}
            for i in np.linspace(0, len(during) - 1, 100).astype(int)
        ],
    }


def slope(steps: list[float], values: list[float], blocks: int = 20) -> list[float]:
    """MiB in 100 steps with its 95 % interval, by least squares over means of `blocks` blocks,
    since looks that are near each other are alike."""
    parts = np.array_split(np.arange(len(steps)), blocks)
    x = np.array([np.mean([steps[i] for i in part]) for part in parts]) / 100
    y = np.array([np.mean([values[i] for i in part]) for part in parts])
    centred = x - x.mean()
    found = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - found * centred
    error = float(np.sqrt(rest @ rest / (blocks - 2) / (centred @ centred)))
    half = t_bound(0.95, blocks - 2) * error
    return [round(value, 4) for value in (found, found - half, found + half)]


def table(results: dict[str, Any]) -> str:
    """Markdown, a column per engine."""
    columns = {engine: cells(found) for engine, found in results.items()}
    names = list(next(iter(columns.values())))
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    lines = [["second -> last tenth", *columns], ["---"] * (1 + len(columns)), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cells(found: dict[str, Any]) -> dict[str, str]:
    """What is said of one run, by name."""

    def growth(name: str) -> str:
        if name not in found:
            return "not looked at"
        middle, low, high = found[name]
        return f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]"

    def ends(name: str, form: str) -> str:
        return " -> ".join(format(value, form) for value in found[name])

    return {
        "steps": f"{found['steps']} of {found['prompts']} prompts x 8",
        "resident memory, MiB in 100 steps": growth("memory"),
        "that of other processes": growth("others"),
        "open handles": ends("handles", ".0f"),
        "threads": ends("threads", ".0f"),
        "other processes": ends("children", ".0f"),
        "tokens of a step": ends("length", ".0f"),
        "processor seconds of a step, median": ends("cpu_s", ".3f"),
        "seconds of a step, median": ends("step_s", ".3f"),
        "ledgers, KiB of a step": f"{found['ledger_kib_per_step']:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--engine", default="transformers", help="transformers or vllm")
    parser.add_argument("--table", action="store_true", help="from results.json again")
    parser.add_argument("--folder", type=Path, help="of the run; kept (default: a temporary one)")
    given, overrides = parser.parse_known_args()
    if not given.table:
        folder = given.folder or Path(tempfile.mkdtemp(prefix="e3rl-long-")) / "run"
        folder.parent.mkdir(parents=True, exist_ok=True)
        seen = run(given.steps, given.prompts, given.engine, overrides, folder.absolute())
        results = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
        results[given.engine] = summarize(seen, folder, given.prompts)
        RESULTS.write_text(json.dumps(results) + "\n")
        if not given.folder:
            shutil.rmtree(folder.parent)
    readme = HERE / "README.md"
    text = insert(readme.read_text(), "long", table(json.loads(RESULTS.read_text())))
    readme.write_text(text)


if __name__ == "__main__":
    main()

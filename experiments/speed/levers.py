"""What each lever of the update does by itself: one setting changed, all else as it is by default.

    python experiments/speed/levers.py [--only WORK ...]
    python experiments/speed/levers.py --table

The default runs before and after the others of a work, which tells how far one run may be from the
next. Writes levers.json beside this file, a line as soon as a run has ended, and the table in
README.md.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from report import insert
from sides import HERE, ROOT, Setting, make_inputs, run_e3rl
from works import WORKS

EMBEDDED, LARGE, REAL = "equal work, embedded", "equal work, 134M", "real work, 134M"
WIDE = "large vocabulary, 43M"
STEPS = {EMBEDDED: 10, LARGE: 1, REAL: 1, WIDE: 1}
ENGINES = {EMBEDDED: "transformers", LARGE: "vllm", REAL: "vllm", WIDE: "vllm"}


class Lever(NamedTuple):
    """A line of the table."""

    name: str
    settings: tuple[str, ...] = ()
    threads: int | None = None
    works: tuple[str, ...] = (EMBEDDED, LARGE)


COMPILED = "policy._target_=compiled.CompiledPolicy"
LEVERS = (
    Lever("as it is", works=(EMBEDDED, LARGE, REAL, WIDE)),
    Lever("a prompt once for each rollout", ("policy.share_prompts=false",), works=(LARGE, REAL)),
    Lever("whole logits", ("policy.head.mode=full",), works=(LARGE, REAL)),
    Lever("blocks of 128 tokens", ("policy.head.block=128",), works=(LARGE,)),
    Lever("passes of 512 tokens", ("module.settings.tokens_per_microbatch=512",)),
    Lever("passes of 1,024 tokens", ("module.settings.tokens_per_microbatch=1024",)),
    Lever("passes of 8,192 tokens", ("module.settings.tokens_per_microbatch=8192",)),
    Lever("AdamW in a loop", ("module.optimizer.fused=false", "+module.optimizer.foreach=false")),
    Lever("AdamW by foreach", ("module.optimizer.fused=false", "+module.optimizer.foreach=true")),
    Lever("no exact entropies", ("module.probe.rows=0",), works=(EMBEDDED, LARGE, REAL, WIDE)),
    Lever("layers compiled", (COMPILED,)),
    Lever("update in bfloat16", ("trainer.precision=bf16-mixed",)),
    Lever("engine in bfloat16", ("engine.settings.dtype=bfloat16",), works=(LARGE,)),
    Lever("one thread", threads=1),
    Lever("as it is, again", works=(EMBEDDED, LARGE, REAL, WIDE)),
)


def measure(lever: Lever, name: str, folder: Path) -> dict[str, Any]:
    """Seconds by phase, memory, and how long it took until the first step had ended."""
    work = next(work for work in WORKS if work.name == name)
    inputs = make_inputs(folder / "inputs", work)
    place = folder / "runs" / "lever"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    run = run_e3rl(
        Setting(folder, Path("none"), threads=lever.threads),
        replace(work, steps=STEPS[name]),
        inputs,
        ENGINES[name],
        place,
        settings=lever.settings,
    )
    phases = {key: run["phases"][key] for key in ("rollout", "update", "probe", "rest")}
    own = {key: run[key] for key in ("seconds", "cpu_s", "peak_gib", "start_s")}
    return {"lever": lever.name, "work": name, **own, **phases}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown of levers.json: seconds of the update, and their ratio to the default's."""
    head = "| work | changed | update, s | of the default's | rollout, s | start, s | peak GiB |"
    lines = [head, "| :--- | :--- | ---: | ---: | ---: | ---: | ---: |"]
    for work in STEPS:
        own = [row for row in rows if row["work"] == work]
        usual = median(row["update"] for row in own if row["lever"].startswith("as it is"))
        name = work
        for row in own:
            ratio = f"{row['update'] / usual:.2f}"
            cells = [name, row["lever"], f"{row['update']:.3g}", ratio, f"{row['rollout']:.3g}"]
            cells += [f"{row['start_s']:.0f}", f"{row['peak_gib']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
            name = ""
    lines += ["", "One run each. Start: until the first step has ended, which is not counted."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "speed")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    path = HERE / "levers.json"
    rows = json.loads(path.read_text()) if path.is_file() else []
    for work in () if args.table else args.only:
        rows = [row for row in rows if row["work"] != work]
        for lever in LEVERS:
            if work in lever.works:
                rows.append(measure(lever, work, args.folder))
                print(rows[-1], flush=True)
                path.write_text(json.dumps(rows, indent=1) + "\n")
    readme = HERE / "README.md"
    readme.write_text(insert(readme.read_text(), "levers", table(rows)))


if __name__ == "__main__":
    main()

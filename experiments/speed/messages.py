"""How long the ranks of a run are in their messages to each other, by who sends them.

    python experiments/speed/messages.py
    python experiments/speed/messages.py --table

One run of the embedded policy's equal work in two processes. What rank 0 waits in a message is
mostly for the other rank to get there. DDP's own, which add up gradients during the backward pass,
are not among them. Writes messages.json beside this file and the table in README.md.
"""

import argparse
import atexit
import json
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch.profilers import PassThroughProfiler

MESSAGES = ("all_reduce", "all_gather", "all_gather_object", "broadcast", "barrier")
WORK, STEPS = "equal work, embedded", 20


class MessageProfiler(PassThroughProfiler):
    """Counts messages and their seconds by the e3rl function that sends them; rank 0 writes."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.found: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        self._within = False
        for name in MESSAGES:
            setattr(dist, name, self._timed(getattr(dist, name)))
        atexit.register(self._write, Path(path))

    def _timed(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._within:  # a message of objects is made of others
                return send(*args, **kwargs)
            began, self._within = time.perf_counter(), True
            try:
                return send(*args, **kwargs)
            finally:
                self._within = False
                entry = self.found[sender()]
                entry[0] += 1
                entry[1] += time.perf_counter() - began

        return timed

    def _write(self, path: Path) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            path.write_text(json.dumps(self.found))


def sender() -> str:
    """The innermost function of e3rl that is not of its own messages, as file and name."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if "/e3rl/" in path and not path.endswith("process/distributed.py"):
            return f"{path.rpartition('/e3rl/')[2]}: {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "Lightning"


def measure(folder: Path) -> dict[str, Any]:
    from sides import Setting, make_inputs, run_e3rl
    from works import WORKS

    work = replace(next(work for work in WORKS if work.name == WORK), steps=STEPS)
    place = folder / "runs" / "messages"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    path = folder / "messages.json"
    profiler = f"profiler={{_target_:messages.MessageProfiler,path:{path}}}"
    inputs, setting = make_inputs(folder / "inputs", work), Setting(folder, Path("none"))
    run = run_e3rl(setting, work, inputs, "transformers:2", place, settings=[profiler])
    steps = STEPS + 1
    places = {
        name: {"messages": count / steps, "seconds": seconds / steps}
        for name, (count, seconds) in json.loads(path.read_text()).items()
    }
    return {"seconds": run["seconds"], "rest": run["phases"]["rest"], "places": places}


def table(found: dict[str, Any]) -> str:
    """Markdown of messages.json, the longest first; those once in a run are left out."""
    lines = ["| sent by | a step | ms a step | of a step |", "| :--- | ---: | ---: | ---: |"]
    often = {name: each for name, each in found["places"].items() if each["messages"] > 0.9}
    for name, each in sorted(often.items(), key=lambda item: -item[1]["seconds"]):
        share = each["seconds"] / found["seconds"]
        cells = [f"`{name}`", f"{each['messages']:.1f}", f"{1000 * each['seconds']:.1f}"]
        lines.append(f"| {' | '.join([*cells, f'{share:.1%}'])} |")
    total = sum(each["seconds"] for each in often.values())
    count = sum(each["messages"] for each in often.values())
    cells = ["all", f"{count:.1f}", f"{1000 * total:.1f}", f"{total / found['seconds']:.1%}"]
    lines += [f"| {' | '.join(cells)} |", ""]
    lines.append(
        f"{WORK}, two processes by transformers: {found['seconds']:.2f} s a step, of which "
        f"{found['rest']:.3f} s are neither rollout nor update. One run."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    here = Path(__file__).resolve().parent
    parser.add_argument("--folder", type=Path, default=here.parents[1] / "build" / "speed")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    path = here / "messages.json"
    if not args.table:
        path.write_text(json.dumps(measure(args.folder), indent=1) + "\n")
    from report import insert

    readme = here / "README.md"
    readme.write_text(insert(readme.read_text(), "messages", table(json.loads(path.read_text()))))


if __name__ == "__main__":
    main()

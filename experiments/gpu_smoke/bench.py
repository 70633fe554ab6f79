"""Where a stage runs: the machine at hand, sizes that suit it, and commands with a time limit."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SPEED = HERE.parent / "speed"
LAST_LINES = 12  # of a command's output, where it fails
POLL_S = 0.05  # between two looks at the GPU's memory, and at a server
NEEDS = {
    "cuda": "a GPU",
    "two": "two GPUs",
    "vllm": "vllm",
    "peft": "peft",
    "trl": "trl",
}
REQUIRED = ("hydra", "omegaconf", "wandb", "math_verify", "lightning", "transformers")

Row = dict[str, Any]
Figures = dict[str, float | str]


class StageError(RuntimeError):
    """A stage's command failed, or ran out of time."""


@dataclass(frozen=True)
class Sizes:
    """How large a stage is.

    Attributes:
        prompts, group, new_tokens: of a step.
        steps: of a run, the first of which warms up.
        shape: of the policy with random weights, by its name in experiments/speed/works.py.
    """

    prompts: int
    group: int
    new_tokens: int
    steps: int
    shape: str

    @property
    def rollouts(self) -> int:
        return self.prompts * self.group


SMALL = Sizes(prompts=4, group=4, new_tokens=32, steps=3, shape="tiny")
LARGE = Sizes(prompts=32, group=8, new_tokens=256, steps=5, shape="1.5B")


@dataclass
class Bench:
    """What all stages share.

    Attributes:
        folder: for runs, logs and policies.
        device: "cuda" or "cpu".
        sizes: of the stages.
        deadline: `time.monotonic()` after which nothing runs any more.
        log: of the stage under way.
    """

    folder: Path
    device: str
    sizes: Sizes
    deadline: float
    log: Path = field(init=False)

    def missing(self, needs: tuple[str, ...]) -> list[str]:
        """What of `needs` is not there, in words."""
        return [NEEDS[name] for name in needs if not self._has(name)]

    def _has(self, name: str) -> bool:
        if name in ("cuda", "two"):
            return self.device == "cuda" and torch.cuda.device_count() > (name == "two")
        return importlib.util.find_spec(name) is not None

    @property
    def engine(self) -> str:
        """Who samples where a stage does not say."""
        return "vllm_gpu" if self.device == "cuda" and self._has("vllm") else "transformers"

    def call(self, command: list[str], environment: dict[str, str] | None = None) -> str:
        """Run Python with arguments; its output. Raises StageError."""
        with self.log.open("a") as output:
            started = output.tell()
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(environment),
                start_new_session=True,
            )
            try:
                code = process.wait(max(1.0, self.deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise StageError("the time was up") from error
            finally:
                if process.poll() is None:  # with the workers that it started
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        text = self.log.read_text()[started:]
        if code:
            end = "\n".join(text.strip().splitlines()[-LAST_LINES:])
            raise StageError(f"exit code {code}:\n{end}")
        return text

    @contextmanager
    def serve(self, *settings: str, environment: dict[str, str] | None = None) -> Iterator[str]:
        """The address of a server of vLLM that `e3rl serve` starts, for the time of the block.

        Raises StageError where it ends, or does not answer in time.
        """
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        url, told = f"http://127.0.0.1:{port}", [f"serve.port={port}", *settings]
        env = self._environment({"VLLM_CPU_OMP_THREADS_BIND": "nobind"} | (environment or {}))
        with self.log.open("a") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "e3rl", "serve", *told],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.folder,
                start_new_session=True,
            )
            try:
                while not answers(url):
                    if process.poll() is not None:
                        raise StageError(f"the server ended with exit code {process.returncode}")
                    if time.monotonic() > self.deadline:
                        raise StageError("the time was up before the server answered")
                    time.sleep(POLL_S)
                yield url
            finally:
                with suppress(ProcessLookupError):  # with the workers that it started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _environment(self, more: dict[str, str] | None) -> dict[str, str]:
        """Of commands: nothing is fetched, and the package is the checkout's."""
        env = {**os.environ, "HF_HUB_OFFLINE": "1", **(more or {})}
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), env.get("PYTHONPATH", "")])
        return env

    def train(self, name: str, *overrides: str, environment: dict[str, str] | None = None) -> "Run":
        """A run of the public command, its ledger read."""
        folder = self.folder / "runs" / name
        memory = MemoryWatch() if self.device == "cuda" else None
        told = [
            *("logger=ledger_only", "control=null", "figures=false", "engine.progress=false"),
            *("trainer.enable_progress_bar=false", f"name={name}", f"hydra.run.dir={folder}"),
        ]
        try:
            self.call(["-m", "e3rl", "train", *told, *overrides], environment)
        finally:
            used = memory.stop() if memory else None
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        rows = [row for row in map(json.loads, lines) if row["kind"] == "train"]
        return Run(rows, used)

    def embedded(self, engine: str | None = None) -> list[str]:
        """Overrides of the default run: fewer steps, everything else as it is."""
        size = self.sizes
        engine = engine or self.engine
        return [
            *(f"prompts_per_step={size.prompts}", f"rollouts_per_prompt={max(8, size.group)}"),
            *(f"data.train.size={size.prompts * size.steps}", "epochs=1"),
            *(f"data.validation.size={size.prompts}", f"validate_every={size.steps}"),
            *(f"checkpoint_every={size.steps}", f"engine={engine}"),
            *(["engine.settings.dtype=auto"] if engine == "vllm_gpu" else []),
        ]


@dataclass(frozen=True)
class Run:
    """Training rows of a ledger, and GPU memory in use, GiB: see `MemoryWatch.stop`."""

    rows: list[Row]
    used: tuple[float, float] | None = None

    def median(self, column: str) -> float:
        """Over the steps but the first; NaN where the column is missing."""
        found = [row[column] for row in self.rows[1:] or self.rows if row.get(column) is not None]
        return float(median(found)) if found else float("nan")

    def mean(self, column: str) -> float:
        found = [row[column] for row in self.rows if row.get(column) is not None]
        return float(mean(found)) if found else float("nan")

    def last(self, column: str) -> float:
        return float(self.rows[-1].get(column, float("nan")))

    def largest(self, column: str) -> float:
        return max(float(row.get(column, float("nan"))) for row in self.rows)

    def speed(self) -> Figures:
        """Seconds of a step and of its phases, tokens per second, share of the matmul peak."""
        figures: Figures = {
            "s/step": self.median("time/step_s"),
            "rollout s": self.median("time/rollout_s"),
            "update s": self.median("time/update_s"),
            "tokens/s": self.median("speed/tokens_per_s"),
            "MFU %": 100 * self.median("speed/mfu"),
        }
        if "resources/gpu_memory_gib" in self.rows[-1]:
            figures["torch GiB"] = self.last("resources/gpu_memory_gib")
        if self.used:
            figures["GPU GiB"] = self.used[1]
        return figures


class MemoryWatch:
    """GPU memory in use, as the driver sees it, more than now."""

    def __init__(self) -> None:
        torch.cuda.empty_cache()
        self._before = in_use()
        self._seen: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(POLL_S):
            self._seen.append(in_use() - self._before)

    def stop(self) -> tuple[float, float]:
        """The least between the highest tide and the last time that it was nearly as high, and the
        most: what comes back between rollouts, and not what was free before the first."""
        self._done.set()
        self._thread.join()
        return ebb(self._seen)


def in_use() -> float:
    """GiB of the first GPU."""
    free, total = torch.cuda.mem_get_info()
    return float(total - free) / 2**30


def ebb(seen: list[float]) -> tuple[float, float]:
    """The least between the first and the last time that most was in use, and that most."""
    most = max(seen, default=0.0)
    high = [place for place, used in enumerate(seen) if used > 0.9 * most]
    return (min(seen[high[0] : high[-1] + 1]), most) if high else (most, most)


def answers(url: str) -> bool:
    """Whether a server is up."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False

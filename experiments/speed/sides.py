"""The processes that are compared: what they are told, and what is read from their rows."""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from inputs import make_policy, make_problems
from watch import Seen, watch
from works import Work

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LEDGER_PHASES = ("sync", "rollout", "reward", "probe", "forward", "backward", "optimizer")
ONE_EVALUATION = (
    "callbacks.pass_at_k.evaluations=[{_target_:e3rl.callbacks.validation_schedule.Evaluation,"
    "name:t1,n:1,temperature:1.0}]"
)


@dataclass(frozen=True)
class Setting:
    """What holds for all runs of a measurement.

    Attributes:
        folder: for policies, problems and runs.
        trl_python: interpreter of TRL's environment.
        device, precision: "cpu" or "cuda"; "float32" or "bfloat16" (compute; weights stay float32).
        threads: of OpenMP on both sides; None: what torch takes.
        prefix: words in front of every side's command, such as those of taskset.
    """

    folder: Path
    trl_python: Path
    device: str = "cpu"
    precision: str = "float32"
    threads: int | None = None
    prefix: tuple[str, ...] = ()

    @property
    def environment(self) -> dict[str, str]:
        told = {
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        return told | ({} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)})


@dataclass(frozen=True)
class Inputs:
    """Made files that both sides read."""

    policy: Path
    train: Path
    validation: Path
    problems: int


def make_inputs(folder: Path, work: Work, problems: int | None = None) -> Inputs:
    """What both sides read, made in a folder, or found there."""
    folder.mkdir(parents=True, exist_ok=True)
    count = problems or work.problems
    policy = make_policy(folder, work.policy, work.fixed)
    return Inputs(policy, *make_problems(folder, work, count), count)


def run_e3rl(
    setting: Setting,
    work: Work,
    inputs: Inputs,
    engine: str,
    folder: Path,
    experiment: str = "grpo",
    settings: Sequence[str] = (),
) -> dict[str, Any]:
    """The public command with a ledger and nothing else; one rollout to validate on.

    `engine` may name a number of processes: "transformers:2". `settings` come last.
    """
    engine, _, processes = engine.partition(":")
    steps = work.steps + 1
    epochs = -(-steps * work.prompts // inputs.problems)
    per_epoch = -(-steps // epochs)
    command = [
        *setting.prefix,
        *(sys.executable, "-m", "e3rl", "train", f"experiment={experiment}", f"engine={engine}"),
        *("data=problem_files", f"data.train.path={inputs.train}"),
        *(f"data.validation.path={inputs.validation}", *policy_overrides(work, inputs.policy)),
        *("reward=function", f"reward.path={HERE / 'reward.py'}:score", "reward.correct_above=0.5"),
        *(["trainer=ddp", f"trainer.devices={processes}"] if processes else []),
        *(f"prompts_per_step={work.prompts}", f"rollouts_per_prompt={work.group}"),
        *(f"max_new_tokens={work.new_tokens}", f"epochs={epochs}", "module.optimizer.lr=1e-4"),
        *(f"+trainer.limit_train_batches={per_epoch}", f"validate_every={epochs * per_epoch}"),
        *(f"checkpoint_every={epochs * per_epoch}", "control=null", "logger=ledger_only"),
        *(ONE_EVALUATION, "callbacks.pass_at_k.ks=[1]", "trainer.enable_progress_bar=false"),
        *("name=speed", f"hydra.run.dir={folder}", *device_overrides(setting, engine)),
        *settings,
    ]
    seen = watch(
        command,
        folder / "metrics.jsonl",
        lambda row: row["kind"] == "train",
        {**setting.environment, "PYTHONPATH": python_path()},
        folder.with_suffix(".log"),
    )
    return summarize(seen, e3rl_phases, "rollout/tokens", "advantage/silent")


def python_path() -> str:
    """Where e3rl's side looks: this checkout, and where this process has found its packages."""
    own = os.environ.get("PYTHONPATH")
    return os.pathsep.join([str(ROOT / "src"), str(HERE), *([own] if own else [])])


def policy_overrides(work: Work, policy: Path) -> list[str]:
    """Activations are not recomputed on either side."""
    if work.policy == "embedded":
        return ["policy=embedded", f"policy.path={policy}"]
    return ["policy=pretrained", f"policy.path={policy}", "policy.gradient_checkpointing=false"]


def device_overrides(setting: Setting, engine: str) -> list[str]:
    on_gpu, half = setting.device == "cuda", setting.precision == "bfloat16"
    told = [f"trainer.accelerator={'gpu' if on_gpu else 'cpu'}"]
    told += ["trainer.precision=bf16-mixed"] if half else []
    return told + ([f"engine.settings.dtype={setting.precision}"] if "vllm" in engine else [])


def e3rl_phases(row: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Of the ledger: `rollout` has the sync of weights and the wait for rewards in it, `update` the
    entropies that are measured before it."""
    found = {name: float(row.get(f"phase/{name}_s") or 0.0) for name in LEDGER_PHASES}
    rollout = found["sync"] + found["rollout"] + found["reward"]
    update = sum(found[name] for name in ("probe", "forward", "backward", "optimizer"))
    return {**found, "rollout": rollout, "update": update, "rest": seconds - rollout - update}


def run_trl(
    setting: Setting,
    work: Work,
    inputs: Inputs,
    folder: Path,
    micro_rows: int | None = None,
    cache: str | None = None,
) -> dict[str, Any]:
    """trl_side.py in TRL's environment."""
    folder.mkdir(parents=True)
    told = {
        "policy": str(inputs.policy),
        "problems": str(inputs.train),
        "folder": str(folder),
        "rows": str(folder / "rows.jsonl"),
        "about": str(setting.folder / "trl.json"),
        "steps": work.steps + 1,
        "micro_rows": micro_rows or work.trl_rows,
        "cache": cache,
        **{key: getattr(work, key) for key in ("prompts", "group", "new_tokens")},
        **{key: getattr(setting, key) for key in ("device", "precision")},
    }
    path = folder / "settings.json"
    path.write_text(json.dumps(told))
    command = [*setting.prefix, str(setting.trl_python), str(HERE / "trl_side.py"), str(path)]
    log = folder.with_suffix(".log")
    seen = watch(command, folder / "rows.jsonl", lambda row: True, setting.environment, log)
    return summarize(seen, trl_phases, "tokens", "dead")


def trl_phases(row: Mapping[str, Any], seconds: float) -> dict[str, float]:
    return {name: row[name] for name in ("rollout", "update", "rest", "reward")}


def summarize(seen: list[Seen], phases_of: Any, tokens: str, dead: str) -> dict[str, Any]:
    """Figures of a run per step, the first step left out.

    A step lasts from one row to the next, so nothing that happens between two steps is lost.
    Seconds, processor seconds and phases are medians over steps. `others_cpu_s` is the processor
    time per step that the side did not take: other processes, and what other machines stole.
    """
    if len(seen) < 2:
        raise RuntimeError(
            f"{len(seen)} steps were seen: the first warms up, at least 2 are needed"
        )
    first, last = seen[0], seen[-1]
    pairs = list(pairwise(seen))
    spans = [b.at - a.at for a, b in pairs]
    phases = [phases_of(s.row, span) for s, span in zip(seen[1:], spans, strict=True)]
    rows = [s.row for s in seen[1:]]
    others = (last.machine_s - first.machine_s) - (last.cpu_s - first.cpu_s)
    return {
        "seconds": round(median(spans), 4),
        "cpu_s": round(median(b.cpu_s - a.cpu_s for a, b in pairs), 3),
        "others_cpu_s": round(max(0.0, others) / len(spans), 3),
        "peak_gib": round(last.peak_gib, 3),
        "start_s": round(first.at - spans[0], 2),
        "steps": len(spans),
        "tokens": round(mean(row[tokens] for row in rows), 1),
        "dead": round(mean(row[dead] for row in rows), 4),
        "phases": {name: round(median(p[name] for p in phases), 4) for name in phases[0]},
        "times": {
            name: round(median(row[name] for row in rows), 5)
            for name in rows[0]
            if name.startswith(("time/", "engine/", "speed/", "phase/"))
            and all(isinstance(row.get(name), float | int) for row in rows)
        },
    }

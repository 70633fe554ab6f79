"""What a step costs with and without look-ahead, where engine and trainer share no core.

    .venv/bin/python experiments/lookahead/measure.py

Two settings, each with `rollout.lookahead` 0 and 1 in turns, in one process:

pinned   vLLM's thread on one CPU, the update on another, one thread each.
distant  an engine that is somewhere else: it returns random tokens after a given time, in which it
         leaves the CPU alone. Times of half, once and twice an update's.

The first two steps of a run start engines and compile; medians are over the others.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from e3rl.batch import Rollout, RolloutBatch
from e3rl.callbacks import rollout
from e3rl.config.composition import conf_dir, register_resolvers
from e3rl.engines.base import RolloutRequest
from e3rl.engines.transformers import TransformersEngine
from e3rl.ledger.ledger import read_rows
from e3rl.runs import run as running
from e3rl.training.module import GRPOModule

WARM_UP = 2
ENGINE_CPU, TRAINER_CPU = 1, 0


class DistantEngine(TransformersEngine):
    """Random tokens, `seconds` after the call; what it knows of the policy is its vocabulary."""

    holds_weights = True

    def __init__(self, seconds: float) -> None:
        super().__init__(progress=False)
        self.seconds = seconds

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        policy = self._policy
        assert policy is not None
        time.sleep(self.seconds)
        for request in requests:
            noise = np.random.default_rng(request.seed)
            ids = tuple(noise.integers(policy.vocabulary_size, size=13).tolist())
            yield Rollout(
                prompt=request.prompt,
                sample=request.sample,
                prompt_tokens=request.prompt_tokens,
                tokens=ids,
                logprobs=(-1.0,) * len(ids),
                temperature=request.temperature,
                truncated=True,
                # A right answer now and then, so that groups have something to learn from.
                text=f"\\boxed{{{noise.integers(20)}}}",
                policy_version=self._version,
            )


def steps(lookahead: int, epochs: int, engine: dict[str, Any] | None) -> list[dict[str, float]]:
    """Train on the embedded default; the rows of its ledger."""
    register_resolvers()
    with tempfile.TemporaryDirectory() as folder:
        settings = (
            *(f"rollout.lookahead={lookahead}", f"epochs={epochs}", "data.train.size=256"),
            *(f"paths.run_dir={folder}/run", "logger=ledger_only", "control=null"),
            *("data.validation.size=8", f"validate_every={8 * epochs}", "checkpoint_every=1000"),
            *("temperature=fixed", "budget=uniform", "sweep.name=lookahead"),
            # Random tokens earn no advantage, and would make the update cheap.
            *("module.settings.skip_zero_advantage=off", "loss/correction=tis"),
            *("trainer.enable_progress_bar=false", "engine.progress=false"),
        )
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            cfg = compose("train", list(settings))
        if engine:
            OmegaConf.update(cfg, "engine", engine, merge=False)
        running.execute(cfg)
        rows = read_rows(Path(folder) / "run" / "metrics.jsonl")
    return [row for row in rows if row["kind"] == "train"][WARM_UP:-1]


def distant(seconds: float) -> dict[str, Any]:
    return {"_target_": "__main__.DistantEngine", "seconds": seconds}


def pin() -> None:
    """Keep engine and trainer on CPUs of their own."""
    update = GRPOModule.training_step

    def pinned(module: GRPOModule, batch: RolloutBatch, batch_idx: int) -> None:
        os.sched_setaffinity(0, {TRAINER_CPU})
        update(module, batch, batch_idx)

    GRPOModule.training_step = pinned  # type: ignore[method-assign]

    def executor(*given: Any, **_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(
            given[0], given[1], initializer=os.sched_setaffinity, initargs=(0, {ENGINE_CPU})
        )

    rollout.ThreadPoolExecutor = executor  # type: ignore[assignment,misc]


def medians(rows: Sequence[dict[str, float]], *names: str) -> list[float]:
    return [median(row[f"time/{name}_s"] for row in rows) for name in names]


def compare(name: str, turns: int, epochs: int, engine: dict[str, Any] | None) -> dict[str, Any]:
    """Both schedules in turns; seconds per step, and what max(rollouts, update) would be."""
    runs: dict[int, list[dict[str, float]]] = {0: [], 1: []}
    for _ in range(turns):
        for lookahead in runs:
            runs[lookahead] += steps(lookahead, epochs, engine)
    rollouts, update, step = medians(runs[0], "rollout", "update", "step")
    (ahead,) = medians(runs[1], "step")
    rest = step - rollouts - update  # rewards, metrics, ledgers: in neither of the two
    return {
        "setting": name,
        "rollouts_s": rollouts,
        "update_s": update,
        "step_s": step,
        "step_ahead_s": ahead,
        "gain": step / ahead,
        "best_possible": step / (max(rollouts, update) + rest),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="passes of 8 steps a run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.jsonl")
    given = parser.parse_args()
    pin()
    found = [compare("vLLM, pinned", given.turns, given.epochs, None)]
    (update,) = medians(steps(0, given.epochs, distant(0.0)), "update")
    for factor in (0.5, 1.0, 2.0):
        name = f"distant, {factor:g} x update"
        found.append(compare(name, given.turns, given.epochs, distant(factor * update)))
    given.out.write_text("".join(json.dumps(row) + "\n" for row in found))
    for row in found:
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}
        print(shown)


if __name__ == "__main__":
    main()

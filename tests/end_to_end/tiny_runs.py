"""Runs of a few small steps in this process, and what two of them must have in common."""

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig

from compositions import composed
from e3rl.batch import RolloutBatch
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import checkpoints, find_damage
from e3rl.engines.vllm_build import INSTALL
from e3rl.ledger.ledger import read_rows
from e3rl.rewards.pool import RewardPool
from e3rl.runs import run as running
from e3rl.training.module import GRPOModule

LEDGERS = ("metrics", "prompts", "validation", "completions")
CLOCKS = (  # metrics of the machine, not of the run
    *("time/", "phase/", "speed/", "resources/", "cost/seconds", "engine/start_s"),
    *("engine/sync_s", "engine/canary_s", "engine/tokens_per_s"),
)
STEPS = 6
ENGINE = os.environ.get("ENGINE", "vllm")  # as the make commands have it
needs_engine = pytest.mark.skipif(
    ENGINE == "vllm" and importlib.util.find_spec("vllm") is None,
    reason=f"vLLM is not installed: {INSTALL}; ENGINE=transformers runs this with transformers",
)
# 2 epochs of 3 steps of 4 prompts; validated in the middle and at the end of an epoch; no figures.
TINY = (
    *("debug=tiny", "logger=ledger_only", "max_new_tokens=20", "rollouts_per_prompt=3"),
    *("data=arithmetic", "policy=embedded_arithmetic"),
    "figures=false",
    *("epochs=2", "data.train.size=12", "data.validation.size=2", "validate_every=2"),
    *("trainer.enable_progress_bar=false", "engine.progress=false", "trainer.accelerator=cpu"),
    *("callbacks.metrics.completions_per_step=1", "callbacks.pass_at_k.evaluations.0.n=2"),
    *("callbacks.pass_at_k.evaluations.2.n=2", "callbacks.pass_at_k.ks=[1,2]", "sweep.name=test"),
    "engine=transformers",  # vLLM takes seconds to start, and some tests make dozens of runs
)
E3 = ("budget.n_low=2", "budget.n_high=4", "temperature.init_steps=2")


def configuration(run_dir: Path, *overrides: str) -> DictConfig:
    """The composed configuration of a tiny run."""
    return composed(*TINY, f"paths.run_dir={run_dir}", *overrides)


def only_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what is slow: self-test, export and figures, and waiting for the disk."""
    monkeypatch.setattr(running, "finish", lambda *_: None)
    monkeypatch.setattr(RewardPool, "self_test", lambda _: None)  # integers need no worker
    monkeypatch.setattr(os, "fsync", lambda _: None)  # matters where power fails, not processes


def run(run_dir: Path, *overrides: str) -> dict[int, str]:
    """Train from the start, or from what `ckpt_path=` says; a digest of each step's rollouts."""
    digests: dict[int, str] = {}
    step = GRPOModule.training_step

    def recorded(module: GRPOModule, batch: RolloutBatch, batch_idx: int) -> None:
        digests[int(module.trainer.fit_loop.total_batch_idx)] = digest(batch)
        step(module, batch, batch_idx)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GRPOModule, "training_step", recorded)
        running.execute(configuration(run_dir, *overrides))
    return digests


Finished = tuple[dict[int, str], Any, Any]  # digests of its steps, its ledgers, its final state


def whole_run(folder: Path, *overrides: str) -> Finished:
    """What a run that nobody stops samples, writes and ends with."""
    with pytest.MonkeyPatch.context() as patch:
        only_train(patch)
        return run(folder, *overrides), ledger_rows(folder), final_state(folder)


def check_goes_on(folder: Path, overrides: Sequence[str], whole: Finished, steps: int) -> None:
    """What goes on after so many steps samples, writes and ends with the same."""
    digests, rows, state = whole
    resumed = run(folder, *overrides, f"ckpt_path={folder}")
    assert resumed == {step: digests[step] for step in range(steps, STEPS)}
    assert ledger_rows(folder) == rows
    assert_same(final_state(folder), state)


def digest(batch: RolloutBatch) -> str:
    """Of everything that was sampled, decided and scored in a step."""
    names = ("tokens", "group", "temperatures", "sampler_logprobs", "rewards", "advantages")
    parts = [batch.tensor(name).numpy().tobytes() for name in (*names, "ranks")]
    return hashlib.sha256(b"".join([*parts, repr(batch.prompt_ids).encode()])).hexdigest()


def ledger_rows(run_dir: Path, suffix: str = "") -> dict[str, list[dict[str, Any]]]:
    """All ledgers, without what the clock says."""
    paths = {file: run_dir / f"{file}.jsonl{suffix}" for file in LEDGERS}
    return {
        file: [
            {key: x for key, x in row.items() if not key.startswith(CLOCKS)}
            for row in (read_rows(path) if path.exists() else [])
        ]
        for file, path in paths.items()
    }


def final_state(run_dir: Path, steps: int = STEPS) -> dict[str, Any]:
    """What the last checkpoint holds, without Lightning's own counters and the clock."""
    last = checkpoints(run_dir / "checkpoints")[-1]
    assert last.name == f"step-{steps:06d}.ckpt"
    state = AtomicCheckpointIO().load_checkpoint(last)
    del state["callbacks"]["e3rl/metrics"]["costs"]["seconds"]
    del state["loops"]
    return state


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Bitwise equality of nested containers of tensors and primitives."""
    assert type(a) is type(b), path
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            assert_same(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_same(x, y, f"{path}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), path
    else:
        assert a == b or (a != a and b != b), path


@contextmanager
def every_state_of_the_disk(run_dir: Path, copies: Path) -> Iterator[list[Path]]:
    """Copies of a run folder after each change of it: whatever a kill may leave behind.

    A checkpoint in the middle of being written is one of them. States that differ in nothing that
    is read again are kept once.
    """
    found: list[Path] = []
    seen: set[tuple[object, ...]] = set()

    def copy() -> None:
        files = sorted(p for p in run_dir.rglob("*") if p.is_file())
        state = tuple((p.name, p.stat().st_size) for p in files if not p.name.startswith("."))
        if state in seen:
            return
        seen.add(state)
        target = copies / f"{len(found):03d}"
        for file in files:
            place = target / file.relative_to(run_dir)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Whole checkpoints are never written to again; ledgers are.
            (os.link if file.suffix == ".ckpt" else shutil.copy)(file, place)
        found.append(target)

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            copy()
            return result

        return call

    copies.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("write", "replace", "unlink"):
            patch.setattr(os, name, watched(getattr(os, name)))
        patch.setattr(torch, "save", watched(torch.save))
        yield found


def sound(run_dir: Path) -> list[Path]:
    """The checkpoints that can be resumed, oldest first."""
    return [path for path in checkpoints(run_dir / "checkpoints") if not find_damage(path)]


def last_before_each_checkpoint(states: Sequence[Path]) -> list[Path]:
    """Of all states with the same newest checkpoint the one with the most rows after it."""
    return list({found[-1].name: left for left in states if (found := sound(left))}.values())

"""Recorded runs of a control and an arm, for the tests of warnings."""

import json
from pathlib import Path
from typing import Any

import yaml
from recorded_runs import Size, write_run

from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.sources.runs import group_by_arm, load_runs
from e3rl.analysis.warnings.compared import Compared
from e3rl.ledger.ledger import read_rows

SMALL = Size(steps=4, prompts=4, problems=6, samples=32, every=2)
BASE: dict[str, Any] = {
    "policy": {"path": "embedded", "head": None, "lora": None},
    "engine": {"_target_": "Transformers", "dtype": "float32", "rows_per_call": 64},
    "data": {"validation": {"size": 6, "seed": 0}, "seed": 1},
    "temperature": {"_target_": "Fixed"},
    "budget": {"_target_": "Uniform"},
    "loss": {"clip_high": 0.2},
    "callbacks": {"pass_at_k": {"ks": [1]}, "temperature": {"strategy": {"_target_": "Fixed"}}},
}
HOTTER = {
    "temperature": {"_target_": "EntropyTarget", "gain": {"vocabulary": 34}},
    "callbacks": {
        "pass_at_k": {"ks": [1]},
        "temperature": {"strategy": {"_target_": "EntropyTarget", "gain": {"vocabulary": 34}}},
    },
}


def folder(
    root: Path, seeds: int = 2, changed: dict[str, Any] | None = None, own_noise: bool = False
) -> Path:
    """A sweep of the control and of an arm with another temperature and `changed` settings."""
    for arm, more in (("grpo", {}), ("mine", HOTTER | (changed or {}))):
        for seed in range(1, seeds + 1):
            run = write_run(root / f"{arm}-{seed}", arm, seed, SMALL)
            configure(run, **(BASE | more), paths={"run_dir": str(run)})
            if own_noise:
                node = (BASE | more)["callbacks"]
                noise = {"pass_at_k": node["pass_at_k"] | {"seed": seed}}
                configure(run, callbacks=node | noise)
    return root


def configure(run: Path, **changed: Any) -> Path:
    """Other sections in the configuration of a run; None takes one out."""
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text()) | changed
    file.write_text(yaml.safe_dump({key: x for key, x in config.items() if x is not None}))
    return run


def recorded_by(run: Path, commit: str) -> Path:
    """A run that says which commit recorded it."""
    (run / "environment.json").write_text(json.dumps({"commit": commit}))
    return run


def rename_problems(run: Path, prefix: str, kept: int = 0) -> None:
    """Other validation problems, but for the first ones that are `kept`."""
    file = run / "validation.jsonl"
    rows = read_rows(file)
    for row in rows:
        ids = row["problem_id"]
        row["problem_id"] = ids[:kept] + [f"{prefix}-{each}" for each in ids[kept:]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def compared(root: Path, rows: bool = False) -> Compared:
    arms = group_by_arm(load_runs(root))
    return Compared(arms, "grpo", compare_arms(arms, "grpo", [1]) if rows else [])


def row(**changed: Any) -> dict[str, Any]:
    return {"arm": "mine", "seeds": 5, "difference": 0.1, "measure": "pass@16"} | changed

"""Writes small run folders that look like recorded ones: seven files, plausible curves."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from e3rl.ledger.ledger import Ledger
from e3rl.seeds import derive_seed

BOUNDS = ((8, 8), (6, 10), (4, 12))
FAMILIES = ("chain", "product", "bracket")
H0 = 0.54


@dataclass(frozen=True)
class Size:
    steps: int = 24  # rollout steps, three epochs
    prompts: int = 8  # a step
    problems: int = 30  # in the validation set
    samples: int = 16  # rollouts per validation problem
    every: int = 8  # steps between validations


def write_run(folder: Path, arm: str, seed: int, size: Size | None = None) -> Path:
    """A whole run folder of one arm; equal arguments write equal bytes."""
    size = size or Size()
    rng = np.random.default_rng(derive_seed("recorded run", arm, seed))
    folder.mkdir(parents=True, exist_ok=True)
    config = {"name": arm, "seed": seed, "trainer": {"max_steps": size.steps}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    names = ("metrics", "prompts", "validation")
    ledgers = {name: Ledger(folder / f"{name}.jsonl") for name in names}
    costs = dict.fromkeys(("rollouts", "tokens", "seconds"), 0.0)
    for step in range(size.steps + 1):
        if step % size.every == 0 or step == size.steps:
            _validate(ledgers, arm, step, size, rng)
        if step < size.steps:
            _train(ledgers, arm, step, size, rng, costs)
    for ledger in ledgers.values():
        ledger.close()
    (folder / "summary.json").write_text(json.dumps({"arm": arm, "steps": size.steps}))
    return folder


def write_study(
    root: Path, arms: Sequence[str], seeds: Sequence[int] = (1, 2), size: Size | None = None
) -> Path:
    """`<root>/<arm>/seed=<seed>` for every arm and seed."""
    for arm in arms:
        for seed in seeds:
            write_run(root / arm / f"seed={seed}", arm, seed, size)
    return root


def _curves(arm: str, progress: float) -> dict[str, float | None]:
    """Expected entropy at tau and at 1, temperature, target and accuracy at a point of a run."""
    controlled = arm in ("ts", "ts_an", "e3")
    annealed = arm in ("ts_an", "e3")
    floor = 0.40 if arm == "grpo_er" else 0.355
    at_one = floor + (H0 - floor) * np.exp(-5 * progress)
    late = max(0.0, (progress - 0.6) / 0.4) if annealed else 0.0
    target = H0 * (1 - 0.1 * (1 - np.cos(np.pi * late)) / 2)
    accuracy = 0.235 + (0.19 if controlled else 0.29) * (1 - np.exp(-3 * progress))
    return {
        "at_tau": target if controlled else at_one,
        "at_one": at_one,
        "target": target if controlled else None,
        "temperature": 1 + 0.45 * (1 - np.exp(-4 * progress)) * (1 - late / 8) if controlled else 1,
        "annealing": target / H0,
        "accuracy": accuracy,
    }


def _train(
    ledgers: dict[str, Ledger],
    arm: str,
    step: int,
    size: Size,
    rng: np.random.Generator,
    costs: dict[str, float],
) -> None:
    now = _curves(arm, step / size.steps)
    epoch = step * len(BOUNDS) // size.steps
    low, high = BOUNDS[epoch] if arm in ("budget", "e3") else BOUNDS[0]
    rank = np.linspace(0, 1, size.prompts)
    n = np.rint(low + (high - low) * rank).astype(int)
    solved = _pass_rates(size.prompts, float(now["accuracy"] or 0), rng)
    correct = rng.binomial(n, np.sort(solved)[::-1])
    entropy, target = now["at_tau"] + rng.normal(0, 0.012), now["target"]
    all_wrong, all_right = (correct == 0).mean(), (correct == n).mean()
    tokens = int(n.sum() * (16 + 6 * step / size.steps))
    row: dict[str, Any] = {
        "kind": "train",
        "rollout_step": step,
        "epoch": epoch,
        "rollout/accuracy": (correct / n).mean(),
        "rollout/accuracy_rollouts": correct.sum() / n.sum(),
        "rollout/all_wrong": all_wrong,
        "rollout/all_right": all_right,
        "rollout/mixed": 1 - all_wrong - all_right,
        "rollout/temperature": now["temperature"],
        "rollout/n": n.sum(),
        "rollout/tokens": tokens,
        "cost/rollouts": costs["rollouts"] + n.sum(),
        "cost/tokens": costs["tokens"] + tokens,
        "cost/seconds": costs["seconds"] + 1.5 + 0.1 * (arm == "e3"),
        "rollout/length": 16 + 6 * step / size.steps + rng.normal(0, 0.2),
        "policy/entropy": entropy,
        "policy/entropy_exact": now["at_tau"] + rng.normal(0, 0.008),
        "policy/entropy_exact_t1": now["at_one"] + rng.normal(0, 0.008),
        "temperature/value": now["temperature"],
        "temperature/target": target,
        "temperature/annealing": now["annealing"],
        "temperature/log_alpha": np.log(target / entropy) if target else None,
        "policy/varentropy": 0.8 * now["at_tau"],
        "budget/n_min": low,
        "budget/n_max": high,
    }
    costs |= {axis: row[f"cost/{axis}"] for axis in costs}
    ledgers["metrics"].append(row)
    ledgers["prompts"].append(
        {
            "rollout_step": step,
            "epoch": epoch,
            "prompt_id": [f"prompt-{step * size.prompts + i}" for i in range(size.prompts)],
            "source": [FAMILIES[i % len(FAMILIES)] for i in range(size.prompts)],
            "n": n.tolist(),
            "correct": correct.tolist(),
            "rank": [None if epoch == 0 else float(r) for r in rank],
        }
    )


def _validate(
    ledgers: dict[str, Ledger], arm: str, step: int, size: Size, rng: np.random.Generator
) -> None:
    now = _curves(arm, step / size.steps)
    accuracy = float(now["accuracy"] or 0)
    plans = {
        "t1": (1.0, size.samples, accuracy, now["at_one"]),
        "greedy": (0.0, 1, accuracy + 0.12, 0.0),
        "live": (now["temperature"], size.samples, accuracy * 0.9, now["at_tau"]),
        "matched": (1.3, size.samples, accuracy * 0.85, H0),
    }
    metrics: dict[str, Any] = {"kind": "validation", "rollout_step": step, "epoch": 0}
    shared = np.random.default_rng(derive_seed("recorded problems"))
    order = shared.permutation(size.problems)  # the same problems are hard in every run
    for name, (temperature, n, mean, entropy) in plans.items():
        rates = np.sort(_pass_rates(size.problems, mean, rng))[order]
        correct = rng.binomial(n, rates)
        metrics[f"val/{name}/pass@1"] = correct.mean() / n
        ledgers["validation"].append(
            {
                "rollout_step": step,
                "name": name,
                "temperature": temperature,
                "problem_id": [f"problem-{i}" for i in range(size.problems)],
                "source": [FAMILIES[i % len(FAMILIES)] for i in range(size.problems)],
                "n": [n] * size.problems,
                "correct": correct.tolist(),
                "entropy_sum": float(entropy or 0) * 1000,
                "tokens": 1000,
            }
        )
    ledgers["metrics"].append(metrics)


def _pass_rates(n: int, mean: float, rng: np.random.Generator) -> np.ndarray:
    """A difficulty spread: Beta(a, b) with the given mean, many hard problems."""
    return rng.beta(1.6 * mean, 1.6 * (1 - mean), size=n)

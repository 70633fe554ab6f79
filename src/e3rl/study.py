"""Record a finished study: `python -m e3rl.study RUNS OUT [--control ARM]`.

Reads every run below RUNS and writes to OUT: light copies of the runs (numbers to six digits),
figures with seed bands, the table of arms with intervals and paired differences to the control
(also sampled at the entropy of the other arms), and the control's run with its final weights,
which later runs compare themselves with.
"""

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from e3rl.analysis.evaluations import Evaluation
from e3rl.analysis.figures import (
    all_wrong_figure,
    budget_figure,
    entropy_figure,
    pass_at_1_figure,
    pass_at_k_figure,
    reward_figure,
    temperature_figure,
)
from e3rl.analysis.runs import Run, by_arm, load_runs
from e3rl.analysis.summary import arm_evaluations, arm_rows, render, to_markdown
from e3rl.ledger import read_rows
from e3rl.running import quiet

DIGITS = 6
COPIED = ("config.yaml", "environment.json", "summary.json")
LEDGERS = ("metrics", "validation", "prompts")
FIGURES = {
    "entropy": entropy_figure,
    "temperature": temperature_figure,
    "reward": reward_figure,
    "all_wrong": all_wrong_figure,
    "budget": budget_figure,
    "pass_at_k": pass_at_k_figure,
    "pass_at_1": pass_at_1_figure,
}
MATCH_WITHIN = 0.02  # relative entropy difference at which two arms share one matched control


def main() -> None:
    parser = argparse.ArgumentParser(description="Record a finished study.")
    parser.add_argument("runs", type=Path, help="folder of finished runs")
    parser.add_argument("out", type=Path, help="the study's folder in experiments/")
    parser.add_argument("--control", default="grpo", help="arm that the others are compared with")
    options = parser.parse_args()
    quiet()
    arms = by_arm(load_runs(options.runs))
    if options.control not in arms:
        parser.error(f"no run of the control {options.control!r}; there are {sorted(arms)}")
    record(arms, options.out / "runs")
    record_control(arms[options.control][0], options.out / "control")
    draw(arms, options.out / "figures")
    evaluations = arm_evaluations(arms)
    evaluations += matched_controls(arms[options.control], evaluations)
    rows = arm_rows(evaluations, control=options.control)
    pd.DataFrame(rows).to_csv(options.out / "results.csv", index=False)
    (options.out / "results.md").write_text(to_markdown(rows) + "\n")
    print(render(rows))


def record(arms: Mapping[str, Sequence[Run]], out: Path) -> None:
    """Light copies of all runs, `<arm>/seed-<seed>`; budgets only where they differ."""
    for arm, runs in arms.items():
        for run in runs:
            uneven = run.prompts["n"].nunique() > 1
            copy_run(run, out / arm / f"seed-{run.seed}", LEDGERS if uneven else LEDGERS[:2])


def copy_run(run: Run, out: Path, ledgers: Sequence[str]) -> None:
    """The files that analyses read, replaced as a whole."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    root = str(run.config.get("paths", {}).get("root", ""))
    for name in COPIED:
        if (run.path / name).is_file():
            text = (run.path / name).read_text()
            (out / name).write_text(text.replace(root, ".") if root else text)
    for name in ledgers:
        rows = [shortened(row) for row in read_rows(run.path / f"{name}.jsonl")]
        lines = (json.dumps(row, separators=(",", ":")) for row in rows)
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def shortened(value: Any) -> Any:
    """Floats to `DIGITS` significant digits, in any nesting."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict):
        return {key: shortened(item) for key, item in value.items()}
    return value


def record_control(run: Run, out: Path) -> None:
    """The control's run and its final policy (safetensors), for tables of later runs."""
    from e3rl.checkpoint_files import newest_sound
    from e3rl.evaluating import load_weights
    from e3rl.policy import Policy

    copy_run(run, out, LEDGERS[:2])
    policy = Policy(**settings(run.config["policy"]))
    load_weights(policy, newest_sound(run.path / "checkpoints"))
    policy.save(out / "policy")


def draw(arms: Mapping[str, Sequence[Run]], out: Path) -> None:
    """One PNG per figure."""
    out.mkdir(parents=True, exist_ok=True)
    for name, figure in FIGURES.items():
        figure(arms).savefig(out / f"{name}.png", dpi=150)


def matched_controls(control: Sequence[Run], evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """The control's seeds sampled at the entropy that other arms have at their own temperature.

    Arms whose entropies differ by less than `MATCH_WITHIN` share a row.
    """
    names: dict[str, float] = {}
    for item in evaluations:
        own = item.name == "live" and item.arm != control[0].name
        known = any(abs(item.entropy / h - 1) < MATCH_WITHIN for h in names.values())
        if own and not known and abs(item.temperature - 1) > MATCH_WITHIN:
            names[f"matched {item.arm}"] = item.entropy
    seeds = [evaluate_at(run, names) for run in control] if names else []
    merged = []
    for name in names:
        parts = [found[name] for found in seeds]
        mean_tau = sum(part.temperature for part in parts) / len(parts)
        mean_entropy = sum(part.entropy for part in parts) / len(parts)
        tables = tuple(part.seeds[0] for part in parts)
        merged.append(replace(parts[0], temperature=mean_tau, entropy=mean_entropy, seeds=tables))
    return merged


def evaluate_at(run: Run, entropies: Mapping[str, float]) -> dict[str, Evaluation]:
    """A finished run's final policy on its own validation problems, by evaluation name."""
    from hydra.utils import instantiate

    from e3rl.callbacks.validation_plan import Evaluation as Wanted
    from e3rl.checkpoint_files import newest_sound
    from e3rl.evaluating import evaluate_policy, load_weights, measured
    from e3rl.policy import Policy

    policy = Policy(**settings(run.config["policy"]))
    load_weights(policy, newest_sound(run.path / "checkpoints"))
    counts = evaluate_policy(
        policy,
        instantiate(run.config["data"]["validation"], _convert_="all"),
        [Wanted(name, n=16, entropy=entropy) for name, entropy in entropies.items()],
        instantiate(run.config["engine"]),
        instantiate(run.config["reward"]),
        run.config["max_new_tokens"],
    )
    return {c.name: measured(run.name, c) for c in counts}


def settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a configuration node."""
    return {key: value for key, value in node.items() if not key.startswith("_")}


if __name__ == "__main__":
    main()

"""Record a finished study: `python -m e3rl.study RUNS OUT [--control ARM]`.

Reads every run below RUNS and writes to OUT: light copies of the runs (numbers to six digits), in
which the control is also sampled at the entropy of the other arms; figures with seed bands; the
table of arms with intervals over problems, and the one at equal cost with verdicts; and the
control's run with its final weights, which later runs compare themselves with.
"""

import argparse
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from matplotlib.figure import Figure

from e3rl.analysis.comparison import compare_arms
from e3rl.analysis.comparison_table import comparison_markdown
from e3rl.analysis.evaluations import Evaluation
from e3rl.analysis.figures import (
    all_wrong_figure,
    budget_figure,
    entropy_figure,
    pass_at_1_figure,
    pass_at_k_figure,
    response_figure,
    reward_figure,
    temperature_figure,
)
from e3rl.analysis.runs import Run, by_arm, load_runs
from e3rl.analysis.summary import arm_evaluations, arm_rows, render, to_markdown
from e3rl.ledger import Ledger, read_rows
from e3rl.running import quiet

if TYPE_CHECKING:
    from e3rl.callbacks.pass_at_k import Counts

DIGITS = 6
COPIED = ("config.yaml", "environment.json", "summary.json")
LEDGERS = ("metrics", "validation", "prompts")
FIGURES: dict[str, Callable[[Mapping[str, Sequence[Run]]], Figure]] = {
    "entropy": entropy_figure,
    "temperature": temperature_figure,
    "reward": reward_figure,
    "all_wrong": all_wrong_figure,
    "budget": budget_figure,
    "pass_at_k": pass_at_k_figure,
    "pass_at_1": pass_at_1_figure,
    "response": response_figure,
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
    record_matched(arms, options.control, options.out / "runs")
    print(tell(by_arm(load_runs(options.out / "runs")), options.control, options.out))


def tell(arms: Mapping[str, Sequence[Run]], control: str, out: Path) -> str:
    """Write both tables of the recorded runs; returns the one of all evaluations."""
    rows = arm_rows(arm_evaluations(arms), control=control)
    pd.DataFrame(rows).to_csv(out / "results.csv", index=False)
    (out / "results.md").write_text(to_markdown(rows) + "\n")
    compared = compare_arms(arms, control)
    pd.DataFrame(compared).to_csv(out / "comparison.csv", index=False)
    (out / "comparison.md").write_text(comparison_markdown(compared) + "\n")
    return render(rows)


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


def record_matched(arms: Mapping[str, Sequence[Run]], control: str, out: Path) -> None:
    """Add to the control's recorded validation its final policy at the entropy of other arms."""
    wanted = entropies_to_match(arm_evaluations(arms), control)
    for run in arms[control] if wanted else ():
        step = int(run.evaluations["rollout_step"].max())
        with Ledger(out / control / f"seed-{run.seed}" / "validation.jsonl") as ledger:
            for counts in evaluate_at(run, wanted):
                ledger.append(shortened({"rollout_step": step, **vars(counts)}))


def entropies_to_match(evaluations: Sequence[Evaluation], control: str) -> dict[str, float]:
    """Entropies that arms have at a temperature of their own, by the name of an evaluation.

    Arms whose entropies differ by less than `MATCH_WITHIN` share one.
    """
    names: dict[str, float] = {}
    for item in evaluations:
        own = item.name == "live" and item.arm != control
        known = any(abs(item.entropy / h - 1) < MATCH_WITHIN for h in names.values())
        if own and not known and abs(item.temperature - 1) > MATCH_WITHIN:
            names[f"matched {item.arm}"] = item.entropy
    return names


def evaluate_at(run: Run, entropies: Mapping[str, float]) -> "list[Counts]":
    """A finished run's final policy on its own validation problems, by evaluation name."""
    from hydra.utils import instantiate

    from e3rl.callbacks.validation_plan import Evaluation as Wanted
    from e3rl.checkpoint_files import newest_sound
    from e3rl.evaluating import evaluate_policy, load_weights
    from e3rl.policy import Policy

    policy = Policy(**settings(run.config["policy"]))
    load_weights(policy, newest_sound(run.path / "checkpoints"))
    return evaluate_policy(
        policy,
        instantiate(run.config["data"]["validation"], _convert_="all"),
        [Wanted(name, n=16, entropy=entropy) for name, entropy in entropies.items()],
        instantiate(run.config["engine"]),
        instantiate(run.config["reward"]),
        run.config["max_new_tokens"],
    )


def settings(node: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments of a configuration node."""
    return {key: value for key, value in node.items() if not key.startswith("_")}


if __name__ == "__main__":
    main()

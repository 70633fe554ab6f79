"""Finished runs as studies keep them: light copies, and what they lack; see `e3rl.record`."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate

from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.analysis.sources.runs import (
    CONFIG,
    SUMMARY,
    VALIDATION,
    Run,
    group_by_arm,
    load_run,
    load_runs,
)
from e3rl.analysis.tables.arm_table import arm_evaluations
from e3rl.callbacks.pass_at_k import EvaluationCounts
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.files import DamagedCheckpointError, checkpoints, newest_sound, step_of
from e3rl.config.build import silence_libraries
from e3rl.evaluation.sampling import evaluate_policy, load_weights
from e3rl.ledger.ledger import pack, read_rows

DIGITS = 6
COPIED = (CONFIG, "environment.json", SUMMARY)
LEDGERS = ("metrics", "validation", "prompts")
TRAINING_ONLY = ("head", "lora", "gradient_checkpointing")  # of a policy; it starts the same
MATCH_WITHIN = 0.02  # relative entropy difference at which two arms share one matched control


def record_runs(source: Path, out: Path, control: str, n: int) -> None:
    """All of `e3rl.record`.

    Raises FileNotFoundError where `source` has no runs, ValueError where none of its finished ones
    is of the control.
    """
    silence_libraries()
    finished = [run for run in load_runs(source) if run.summary is not None]
    arms = group_by_arm(finished)
    if control not in arms:
        raise ValueError(f"no finished run of the control {control!r}; there are {list(arms)}")
    new = copy_new_runs(finished, out / "runs")
    print(f"{len(finished)} finished runs, {len(new)} of them new")
    if not (out / "control").exists():
        record_control(arms[control][0], out / "control")
    add_evaluations(arms, control, out / "runs", n)


def copy_new_runs(runs: Sequence[Run], out: Path) -> list[Path]:
    """Light copies of the runs that are not there yet; budgets where they differ, or of seed 1."""
    new = []
    for run in runs:
        folder = out / run.path.name
        if (folder / SUMMARY).is_file():
            continue
        wanted = run.seed == 1 or run.prompts["n"].nunique() > 1
        copy_run(run, folder, LEDGERS if wanted else LEDGERS[:2])
        new.append(folder)
    return new


def copy_run(run: Run, out: Path, ledgers: Sequence[str]) -> None:
    """The files that analyses read; the summary last, since it says that all is there."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    paths = run.config.get("paths", {})
    roots = [str(Path(paths["sweeps"]).parent)] if "sweeps" in paths else []
    roots += [str(paths["root"])] if "root" in paths else []
    for name in ledgers:
        rows = [round_numbers(row) for row in read_rows(run.path / f"{name}.jsonl")]
        pack(out / f"{name}.jsonl", rows)
    for name in COPIED:
        if (run.path / name).is_file():
            text = (run.path / name).read_text()
            for root in roots:  # what a machine calls its folders is nobody else's concern
                text = text.replace(root, ".") if len(root) > 1 else text
            (out / name).write_text(text)


def round_numbers(value: Any) -> Any:
    """Floats to `DIGITS` significant digits, in any nesting."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [round_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: round_numbers(item) for key, item in value.items()}
    return value


def record_control(run: Run, out: Path) -> None:
    """The control's run and its final policy (safetensors), for tables of later runs."""
    copy_run(run, out, LEDGERS[:2])
    policy = instantiate(run.config["policy"], _convert_="all")
    load_weights(policy, last_weights(run))
    policy.save(out / "policy")


def add_evaluations(
    arms: Mapping[str, Sequence[Run]], control: str, recorded: Path, n: int
) -> None:
    """Append to the recorded validations what they lack; see the module."""
    first = arms[control][0]
    start = find_recorded(recorded / first.path.name, 0, "t1", n)
    if start is None:
        (counts,) = sample_policy(first, [Evaluation("t1", n=n, temperature=1.0)], trained=False)
        start = round_numbers(row_of(0, counts))
    for runs in arms.values():
        for run in runs:
            folder = recorded / run.path.name
            if start_of(run) != start_of(first):
                print(f"{folder.name}: starts or is validated otherwise than {first.path.name}")
            elif find_recorded(folder, 0, "t1", n) is None:
                append(folder, [start])
            add_last(run, folder, own_temperature(run, n), n)
    for run in arms[control]:
        others = {arm: same_seed(runs, run.seed) for arm, runs in arms.items() if arm != control}
        found = {arm: [load_run(recorded / r.path.name) for r in rs] for arm, rs in others.items()}
        wanted = entropies_to_match(arm_evaluations({a: r for a, r in found.items() if r}), control)
        matched = [Evaluation(name, n=n, entropy=entropy) for name, entropy in wanted.items()]
        add_last(run, recorded / run.path.name, matched, n)


def start_of(run: Run) -> list[Any]:
    """Settings that decide what the untrained policy scores."""
    policy, data = run.config.get("policy", {}), run.config.get("data", {})
    own = {key: value for key, value in policy.items() if key not in TRAINING_ONLY}
    return [own, run.config.get("max_new_tokens"), data.get("validation")]


def add_last(run: Run, folder: Path, wanted: Sequence[Evaluation], n: int) -> None:
    """Sample the final policy in the ways that are not recorded yet, and append them."""
    step = int(run.evaluations["rollout_step"].max())
    lacking = [each for each in wanted if find_recorded(folder, step, each.name, n) is None]
    if lacking and step not in map(step_of, checkpoints(run.path / "checkpoints")):
        names = ", ".join(each.name for each in lacking)
        print(f"{folder.name}: not sampled, its weights are gone: {names}")
    elif lacking:
        rows = [row_of(step, counts) for counts in sample_policy(run, lacking)]
        append(folder, [round_numbers(row) for row in rows])
        print(f"{folder.name}: {', '.join(each.name for each in lacking)} with {n} rollouts")


def own_temperature(run: Run, n: int) -> list[Evaluation]:
    """The last training temperature, of a run whose temperature is not 1."""
    live = run.evaluations[run.evaluations["name"] == "live"]
    if live.empty:
        return []
    tau = float(live.sort_values("rollout_step").iloc[-1]["temperature"])
    return [Evaluation("live", n=n, temperature=tau)] if abs(tau - 1) > MATCH_WITHIN else []


def same_seed(runs: Sequence[Run], seed: int) -> list[Run]:
    return [run for run in runs if run.seed == seed]


def entropies_to_match(evaluations: Sequence[EvaluationResult], control: str) -> dict[str, float]:
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


def find_recorded(folder: Path, step: int, name: str, n: int) -> dict[str, Any] | None:
    """The recorded row of an evaluation with at least n rollouts of every problem."""
    for row in read_rows(folder / VALIDATION):
        if (row["rollout_step"], row["name"]) == (step, name) and min(row["n"]) >= n:
            return dict(row)
    return None


def append(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Later rows of one step and name replace earlier ones when they are read."""
    pack(folder / VALIDATION, [*read_rows(folder / VALIDATION), *rows])


def row_of(step: int, counts: EvaluationCounts) -> dict[str, Any]:
    return {"rollout_step": step, **vars(counts)}


def sample_policy(
    run: Run, wanted: Sequence[Evaluation], trained: bool = True
) -> list[EvaluationCounts]:
    """A run's final policy, or the one it started from, on its validation problems."""
    policy = instantiate(run.config["policy"], _convert_="all")
    if trained:
        load_weights(policy, last_weights(run))
    return evaluate_policy(
        policy,
        instantiate(run.config["data"]["validation"], _convert_="all"),
        wanted,
        instantiate(run.config["engine"]),
        instantiate(run.config["reward"]),
        run.config["max_new_tokens"],
    )


def last_weights(run: Run) -> Path:
    """The checkpoint of a run's last validation.

    Raises DamagedCheckpointError where only earlier ones are sound: what they sample is not what
    the run ended with.
    """
    step = int(run.evaluations["rollout_step"].max())
    found = newest_sound(run.path / "checkpoints")
    if step_of(found) != step:
        raise DamagedCheckpointError(
            f"{run.path}: validated last at step {step}, and its newest sound checkpoint is "
            f"{found.name}; remove the run to make it again"
        )
    return found

"""GRPO by TRL on the embedded default, seed by seed, as run folders that `e3rl study` reads.

    experiments/speed/setup_trl                                      # once
    .venv/bin/python experiments/parity/run.py --seeds 101 102 ...   # goes on when started again

Trains with `trl_side.py`, judges every completion again with e3rl's own reward, samples the
policies after 64 and 128 steps on the validation problems of `../carries_core` by `e3rl evaluate`,
and writes each finished run to `runs/`; `--pack` makes `runs.tar.xz` of them. Both sides start from
the same policy, so step 0 is the control's.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from e3rl.data.carries import carry_problems
from e3rl.ledger.archive import open_runs, pack_runs
from e3rl.ledger.ledger import pack, read_rows
from e3rl.policy.policy import embedded_folder
from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.scorer import Question
from e3rl.runs.extent import shorten_row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CONTROL = HERE.parent / "carries_core" / "runs"
CONTROL_NAME = "seed-{}_experiment-grpo_engine-transformers"
WORK = ROOT / "build" / "parity"
TRL_PYTHON = ROOT / "build" / "trl" / "bin" / "python"
PROMPTS, GROUP, STEPS = 32, 8, 128
VALIDATED = {64: 4, 128: 16}  # steps, and rollouts of each validation problem at temperature 1
VALIDATION = (
    *("problems=carries", "problems.size=1024", "engine=transformers", "max_new_tokens=80"),
    *("temperatures=[1.0,0]", "prompts_per_batch=256"),
)
Row = dict[str, Any]


def train(seed: int, folder: Path, python: Path, kept: Sequence[int] = tuple(VALIDATED)) -> None:
    """Run `trl_side.py` unless it has come to its end before; keep the weights of these steps."""
    if (folder / "about.json").is_file():
        return
    folder.mkdir(parents=True)
    problems = folder / "problems.jsonl"
    rows = [
        {"prompt": str(problem.prompt), "answer": problem.answer}
        for problem in carry_problems("train", size=1024, seed=0)
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {
        **{"policy": str(embedded_folder("embedded")), "problems": str(problems)},
        **{"folder": str(folder), "kept": list(kept), "seed": seed, "lr": 2e-4},
        **{"steps": STEPS, "prompts_per_step": PROMPTS, "group": GROUP},
        **{"max_new_tokens": 80, "micro_rows": 64},
    }
    (folder / "settings.json").write_text(json.dumps(told))
    command = [str(python), str(HERE / "trl_side.py"), str(folder / "settings.json")]
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=log)


def judge_again(rows: Sequence[Row]) -> None:
    """Raise ValueError where e3rl's reward differs from what TRL trained with."""
    with build_math_rewards(answer_format="integer_box", workers=1) as pool:
        for row in rows:
            pool.submit(row["completion"], Question("", row["prompt"], row["answer"]))
        verdicts = pool.collect()
    for row, verdict in zip(rows, verdicts, strict=True):
        if verdict.reward != row["reward"]:
            raise ValueError(f"TRL was told {row['reward']}, e3rl says {verdict}: {row}")


def training_rows(logged: Sequence[Row], completions: Sequence[Row]) -> Iterator[Row]:
    """The rows of a run's ledger that both sides know, in e3rl's names."""
    tokens = seconds = 0.0
    per_step = PROMPTS * GROUP
    for step, row in enumerate(logged):
        mine = completions[step * per_step : (step + 1) * per_step]
        starts = range(0, per_step, GROUP)
        groups = [[each["reward"] for each in mine[at : at + GROUP]] for at in starts]
        if any(len({each["prompt"] for each in mine[at : at + GROUP]}) > 1 for at in starts):
            raise ValueError(f"step {step}: a group of TRL has several prompts")
        tokens += row["completions/mean_length"] * per_step
        seconds += row["seconds"]
        yield {
            **{"kind": "train", "rollout_step": step, "epoch": step * PROMPTS // 1024},
            "rollout/accuracy": sum(map(sum, groups)) / per_step,
            "rollout/all_wrong": sum(not any(group) for group in groups) / PROMPTS,
            "rollout/all_right": sum(all(group) for group in groups) / PROMPTS,
            "rollout/length": row["completions/mean_length"],
            "rollout/truncated": row["completions/clipped_ratio"],
            "rollout/n": float(per_step),
            "rollout/tokens": row["completions/mean_length"] * per_step,
            "policy/entropy": row.get("entropy"),
            "policy/grad_norm": row["grad_norm"],
            "cost/rollouts": float(per_step * (step + 1)),
            "cost/tokens": tokens,
            "cost/seconds": seconds,
            "time/step_s": row["seconds"],
        }


def validation_rows(seed: int, folder: Path) -> Iterator[Row]:
    """Counts per problem of the control's start and of what TRL trained."""
    start = read_rows(open_runs(CONTROL) / CONTROL_NAME.format(seed) / "validation.jsonl")
    yield from (row for row in start if row["rollout_step"] == 0)
    for step, n in VALIDATED.items():
        out = folder / f"validation-{step}"
        policy = [f"policy.path={folder / f'step-{step:06d}'}", f"n={n}", f"ks=[1,{n}]"]
        own = [*policy, f"seed={seed}", f"out={out}"]
        command = [sys.executable, "-m", "e3rl", "evaluate", *VALIDATION, *own]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        for row in read_rows(out / "validation.jsonl"):
            name = "t1" if row["temperature"] else "greedy"
            yield {**row, "rollout_step": step, "name": name, "model": "trl"}


def write_run(seed: int, folder: Path, out: Path) -> None:
    """The run as `e3rl study` reads it; the configuration comes last."""
    logged, completions = read_rows(folder / "rows.jsonl"), read_rows(folder / "completions.jsonl")
    if (len(logged), len(completions)) != (STEPS, STEPS * PROMPTS * GROUP):
        raise ValueError(f"{folder}: {len(logged)} steps, {len(completions)} completions")
    judge_again(completions)
    out.mkdir(parents=True, exist_ok=True)
    pack(out / "metrics.jsonl", [shorten_row(row) for row in training_rows(logged, completions)])
    pack(out / "validation.jsonl", [shorten_row(row) for row in validation_rows(seed, folder)])
    about = json.loads((folder / "about.json").read_text())
    OmegaConf.save({"name": "trl", "seed": seed, "trainer": about}, out / "config.yaml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[])
    parser.add_argument("--python", type=Path, default=TRL_PYTHON)
    parser.add_argument("--pack", action="store_true", help="write runs.tar.xz")
    options = parser.parse_args()
    runs = open_runs(HERE / "runs")
    for seed in options.seeds:
        out, folder = runs / f"seed-{seed}_trl", WORK / f"seed-{seed}"
        if not (out / "config.yaml").is_file():
            train(seed, folder, options.python)
            write_run(seed, folder, out)
            print(f"{out.name}: recorded", flush=True)
    if options.pack:
        print(pack_runs(runs))


if __name__ == "__main__":
    main()

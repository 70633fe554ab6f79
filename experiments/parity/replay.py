"""e3rl's update on the very rollouts that TRL sampled and trained with, step by step.

    .venv/bin/python experiments/parity/replay.py build/parity/seed-101
    .venv/bin/python experiments/parity/replay.py --every-step 111
    .venv/bin/python experiments/parity/replay.py --tables              # the README's tables again

If both compute the same update, gradients have the same norm and the weights stay together, as far
as rounding goes; two controls say how far. One has TRL's ε below the standard deviation, the other
is e3rl beside e3rl with other micro-batches, which changes nothing but the order of sums. Writes
results/replay.jsonl.xz, a row per setting and step: both norms, and where TRL's weights were kept
their distance, how far TRL's have moved, and the distance to e3rl's as it is.

With `--every-step SEED` TRL trains once more and keeps its weights after every step, and every step
of e3rl starts from TRL's: nothing grows from step to step but AdamW's moments, which are of e3rl's
own gradients. Writes results/every_step.jsonl.xz, where a distance is that of one step.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import run
import torch
from hydra import compose, initialize_config_dir
from lightning import Callback, Trainer
from safetensors.torch import load_file
from torch import Tensor

from e3rl.analysis.page.study import write_tables
from e3rl.analysis.tables.cells import as_markdown
from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.config.build import build, silence_libraries
from e3rl.config.composition import conf_dir, register_resolvers
from e3rl.ledger.ledger import pack, read_rows
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.training.module import GRPOModule

HERE = Path(__file__).parent
PROMPTS, GROUP = run.PROMPTS, run.GROUP
WEIGHTS = "model.safetensors"
SETTINGS = {  # of e3rl, by what they are called
    "e3rl as it is": (),
    "e3rl with TRL's ε": ("+advantage.eps=1e-4",),
    "e3rl with other micro-batches": ("module.settings.tokens_per_microbatch=512",),
}
STEPWISE = ("e3rl as it is", "e3rl with TRL's ε")
README = HERE / "README.md"
Row = dict[str, Any]
Named = Mapping[str, Tensor]


class Batches:
    """TRL's steps as finished batches of e3rl."""

    def __init__(self, completions: Sequence[Row], policy: Policy, advantage: Any) -> None:
        self.completions, self.policy, self.advantage = completions, policy, advantage

    def __len__(self) -> int:
        return len(self.completions) // (PROMPTS * GROUP)

    def __iter__(self) -> Iterator[RolloutBatch]:
        size = PROMPTS * GROUP
        for step in range(len(self)):
            yield self.batch(step, self.completions[step * size : (step + 1) * size])

    def batch(self, step: int, rows: Sequence[Row]) -> RolloutBatch:
        first = rows[::GROUP]
        encoded = [tuple(self.policy.tokenizer(row["prompt"])["input_ids"]) for row in first]
        batch = RolloutBatch(
            prompt_ids=[f"{i} {row['prompt']}" for i, row in enumerate(first)],
            prompts=[row["prompt"] for row in first],
            answers=[row["answer"] for row in first],
            sources=["carries"] * PROMPTS,
            prompt_tokens=[list(tokens) for tokens in encoded],
            stream=(0, "train", step),
        )
        rollouts = [
            Rollout(
                prompt=place // GROUP,
                sample=place % GROUP,
                prompt_tokens=encoded[place // GROUP],
                tokens=tuple(row["tokens"]),
                logprobs=(0.0,) * len(row["tokens"]),  # of no account: the trainer's own are used
                temperature=1.0,
                truncated=row["tokens"][-1] != self.policy.tokenizer.eos_token_id,
                text=row["completion"],
                policy_version=step,
            )
            for place, row in enumerate(rows)
        ]
        batch.extend(rollouts, [RolloutScore(row["reward"], row["reward"]) for row in rows], pad=0)
        batch.advantages = self.advantage(batch.rewards, batch.group, PROMPTS)
        return batch


class Watch(Callback):
    """The norm of every step's gradient, and the distance to what TRL kept.

    Steps start where e3rl's last one ended, or, from `every_step`, where TRL's did.
    """

    def __init__(
        self, folder: Path, start: Named, logged: Sequence[Row], every_step: bool = False
    ) -> None:
        self.folder, self.start, self.logged = folder, start, logged
        self.every_step = every_step
        self.rows: list[Row] = []
        self.weights: dict[int, Named] = {}  # at steps whose weights TRL kept

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.every_step and batch_idx:
            self.start = load_file(self.folder / f"step-{batch_idx:06d}" / WEIGHTS)
            ours = dict(pl_module.policy.model.named_parameters())
            for name, value in self.start.items():
                ours[name].data.copy_(value)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = batch_idx + 1
        row = {"step": step, "trl": self.logged[batch_idx]["grad_norm"]}
        row |= {"e3rl": batch.metrics["policy/grad_norm"]}
        kept = self.folder / f"step-{step:06d}" / WEIGHTS
        if kept.is_file():
            theirs = load_file(kept)
            ours = dict(pl_module.policy.model.named_parameters())
            mine = {name: ours[name].detach().clone() for name in theirs}
            row |= {"moved": distance(theirs, self.start), "to_trl": distance(theirs, mine)}
            if not self.every_step:
                self.weights[step] = mine
        self.rows.append(row)


def distance(first: Named, second: Named) -> float:
    """Euclidean, over all weights."""
    return float(torch.stack([(first[n] - second[n]).square().sum() for n in first]).sum().sqrt())


def replay(folder: Path, settings: Sequence[str], every_step: bool = False) -> Watch:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", ["experiment=grpo", "engine=transformers", *settings])
    policy: Policy = build(cfg, "policy")
    module: GRPOModule = build(cfg, "module", policy=policy)
    start = load_file(embedded_folder("embedded") / WEIGHTS)
    watch = Watch(folder, start, read_rows(folder / "rows.jsonl"), every_step)
    batches = Batches(read_rows(folder / "completions.jsonl"), policy, build(cfg, "advantage"))
    trainer = Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_model_summary": False},
        **{"logger": False, "enable_checkpointing": False, "enable_progress_bar": False},
        use_distributed_sampler=False,
        callbacks=[watch],
    )
    trainer.fit(module, train_dataloaders=batches)
    return watch


def replay_all(folder: Path) -> Iterator[Row]:
    """Every setting's rows; the first setting is what the others are held against."""
    first: dict[int, Named] = {}
    for name, settings in SETTINGS.items():
        found = replay(folder, settings)
        first = first or found.weights
        for row in found.rows:
            if (step := row["step"]) in first:
                row["to_e3rl"] = distance(first[step], found.weights[step])
            yield {"setting": name, **row}


def replay_every_step(seed: int, python: Path) -> Iterator[Row]:
    """TRL trains with this seed, and e3rl starts each step from TRL's weights."""
    folder = run.WORK / f"every-step-{seed}"
    run.train(seed, folder, python, kept=range(1, run.STEPS + 1))
    run.judge_again(read_rows(folder / "completions.jsonl"))
    for name in STEPWISE:
        for row in replay(folder, SETTINGS[name], every_step=True).rows:
            yield {"setting": name, **row}


def table_of_steps(rows: Sequence[Row]) -> str:
    """How far apart norms and weights are after single steps from the same weights."""
    columns = [f"{what}, {how}" for what in ("norms", "weights") for how in ("at most", "median")]
    cells = [["", "steps", *columns]]
    for name in STEPWISE:
        mine = [row for row in rows if row["setting"] == name]
        norms = [abs(row["e3rl"] / row["trl"] - 1) for row in mine]
        weights = [row["to_trl"] / row["moved"] for row in mine]
        numbers = [f"{find(values):.1e}" for values in (norms, weights) for find in (max, median)]
        cells.append([name, str(len(mine)), *numbers])
    header, *body = cells
    return as_markdown((header, body, ""), [""])


def table(rows: Sequence[Row]) -> str:
    """How far apart norms and weights are in either half of the run."""
    half = max(row["step"] for row in rows) // 2
    cells = [
        ["", *(f"norms, steps {span}, at most" for span in (f"1 to {half}", f"{half + 1} on"))]
        + [
            f"weights, step {step}, to {whom}"
            for step in (half, 2 * half)
            for whom in ("TRL", "e3rl")
        ]
    ]
    for name in SETTINGS:
        mine = [row for row in rows if row["setting"] == name]
        apart = [abs(row["e3rl"] / row["trl"] - 1) for row in mine]
        kept = {row["step"]: row for row in mine if "moved" in row}
        far = [
            f"{100 * kept[step][to] / kept[step]['moved']:.2f} %" if kept[step][to] else ""
            for step in (half, 2 * half)
            for to in ("to_trl", "to_e3rl")
        ]
        cells.append([name, f"{max(apart[:half]):.1e}", f"{max(apart[half:]):.1e}", *far])
    header, *body = cells
    return as_markdown((header, body, ""), [""])


TABLES = {"replay": table, "every_step": table_of_steps}


def write(name: str, rows: Sequence[Row]) -> None:
    """The table of these rows into the README."""
    text = TABLES[name](rows).strip()
    write_tables(README, {name: text})
    print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="of a seed, as run.py leaves it")
    parser.add_argument("--every-step", type=int, metavar="SEED", help="start from TRL's weights")
    parser.add_argument("--python", type=Path, default=run.TRL_PYTHON, help="TRL's environment")
    parser.add_argument("--tables", action="store_true", help="the tables of what is recorded")
    options = parser.parse_args()
    register_resolvers()
    silence_libraries()
    made = {}
    if options.folder:
        made["replay"] = list(replay_all(options.folder))
    if options.every_step is not None:
        made["every_step"] = list(replay_every_step(options.every_step, options.python))
    (HERE / "results").mkdir(exist_ok=True)
    for name, rows in made.items():
        pack(HERE / "results" / f"{name}.jsonl", rows)
    for name in TABLES if options.tables else made:
        write(name, read_rows(HERE / "results" / f"{name}.jsonl"))


if __name__ == "__main__":
    main()

"""e3rl's update on the very rollouts that TRL sampled and trained with, step by step.

    .venv/bin/python experiments/parity/replay.py build/parity/seed-101

If both compute the same update, gradients have the same norm at every step and the weights stay
together, up to rounding. Writes results/replay.jsonl, a row per step: the norm on both sides, and
at steps whose weights were kept their distance, relative to how far TRL's have moved.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from lightning import Callback, Trainer
from safetensors.torch import load_file
from torch import Tensor

from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.config.build import build, silence_libraries
from e3rl.config.composition import conf_dir, register_resolvers
from e3rl.ledger.ledger import read_rows
from e3rl.policy.policy import Policy, embedded_folder
from e3rl.training.module import GRPOModule

HERE = Path(__file__).parent
PROMPTS, GROUP = 32, 8
WEIGHTS = "model.safetensors"
Row = dict[str, Any]


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
    """The norm of every step's gradient, and the distance to what TRL kept."""

    def __init__(self, folder: Path, start: dict[str, Tensor], logged: Sequence[Row]) -> None:
        self.folder, self.start, self.logged = folder, start, logged
        self.rows: list[Row] = []

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        row = {"step": batch_idx + 1, "trl": self.logged[batch_idx]["grad_norm"]}
        row |= {"e3rl": batch.metrics["policy/grad_norm"]}
        kept = self.folder / f"step-{batch_idx + 1:06d}" / WEIGHTS
        if kept.is_file():
            theirs = load_file(kept)
            ours = dict(pl_module.policy.model.named_parameters())
            row |= {"distance": distance(theirs, ours), "moved": distance(theirs, self.start)}
        self.rows.append(row)


@torch.no_grad()
def distance(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Euclidean, over all weights that both have."""
    return float(sum((first[name] - second[name]).square().sum() for name in first).sqrt())


def replay(folder: Path) -> list[Row]:
    register_resolvers()
    silence_libraries()
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        cfg = compose("train", ["experiment=grpo", "engine=transformers"])
    policy: Policy = build(cfg, "policy")
    module: GRPOModule = build(cfg, "module", policy=policy)
    watch = Watch(
        folder, load_file(embedded_folder("embedded") / WEIGHTS), read_rows(folder / "rows.jsonl")
    )
    batches = Batches(read_rows(folder / "completions.jsonl"), policy, build(cfg, "advantage"))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = Trainer(
        **{"accelerator": "cpu", "devices": 1, "max_epochs": 1, "enable_model_summary": False},
        **quiet,
        use_distributed_sampler=False,
        callbacks=[watch],
    )
    trainer.fit(module, train_dataloaders=batches)
    return watch.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="of a seed, as run.py leaves it")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "replay.jsonl")
    options = parser.parse_args()
    rows = replay(options.folder)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(rows[-1])


if __name__ == "__main__":
    main()

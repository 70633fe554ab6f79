"""Slot `metrics`: one row of the ledger per rollout step, from the finished batch."""

import logging
import math
import time
from collections.abc import Mapping
from typing import Any

import torch
from lightning import LightningModule, Trainer
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.callbacks.grad_norms import norm_moments
from e3rl.callbacks.health import RunHealth
from e3rl.callbacks.slot import Slot, rollout_step
from e3rl.callbacks.speed import Speedometer
from e3rl.ledger.logger import ledgers, log_row
from e3rl.process.distributed import all_gather, all_sum, all_sum_and_max
from e3rl.process.environment import peak_memory_gib

log = logging.getLogger(__name__)

COSTS = ("rollouts", "tokens", "seconds")


class RolloutMetrics(Slot):
    """Reads the batch, writes rows; keeps the running cost of the run.

    It stands before the checkpoint, so that a saved step always has its row. What `RunHealth` finds
    odd about one is logged.

    Args:
        completions_per_step: rollouts whose text goes to completions.jsonl each step; of a step
            with a gradient that was not finite all of them go there.
    """

    slot = "metrics"
    reads = ("advantages", "correct")

    def __init__(self, completions_per_step: int = 4) -> None:
        if completions_per_step < 0:
            raise ValueError(f"completions_per_step={completions_per_step}: use 0 or more")
        self.completions_per_step = completions_per_step
        self.costs = dict.fromkeys(COSTS, 0.0)
        self.health = RunHealth()
        self._speedometer: Speedometer | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._speedometer = Speedometer.of(trainer, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        step = rollout_step(trainer)
        row = rollout_metrics(batch)
        seconds = time.monotonic() - batch.born
        spent = (row["rollout/n"], row["rollout/tokens"], seconds)
        for name, cost in zip(COSTS, spent, strict=True):
            self.costs[name] += cost
        row |= {f"cost/{name}": cost for name, cost in self.costs.items()}
        row |= {"time/step_s": seconds} | resources(batch, pl_module.device) | batch.metrics
        if self._speedometer is not None:
            row |= self._speedometer.metrics(batch, seconds)
        shards = all_gather(prompt_rows(batch))
        log_row(trainer, row, step)
        head = {"rollout_step": step, "epoch": trainer.current_epoch}
        merged = {key: [x for shard in shards for x in shard[key]] for key in shards[0]}
        completions = self._completions(batch)
        for ledger in ledgers(trainer):
            ledger.log_row("prompts", head | merged)
            for completion in completions:
                ledger.log_row("completions", {"rollout_step": step, **completion})
        for remark in self.health.remarks(row):
            if trainer.is_global_zero:
                log.warning("step %d: %s", step + 1, remark)
        shown = {"accuracy": row["rollout/accuracy"], "tau": row["rollout/temperature"]}
        pl_module.log_dict(shown, prog_bar=True, logger=False, batch_size=batch.n_prompts)

    def _completions(self, batch: RolloutBatch) -> list[dict[str, Any]]:
        if not batch.metrics.get("policy/nonfinite_steps"):
            return sample_completions(batch, self.completions_per_step)
        shards = all_gather(sample_completions(batch, batch.n_rollouts))
        return [completion for shard in shards for completion in shard]

    def state_dict(self) -> dict[str, Any]:
        return {"costs": dict(self.costs), "health": self.health.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.costs = {name: float(state_dict["costs"][name]) for name in COSTS}
        if "health" in state_dict:  # older ones lack it
            self.health.load_state_dict(state_dict["health"])


def rollout_metrics(batch: RolloutBatch) -> dict[str, float]:
    """Figures of the step over all ranks, under `rollout/` and `budget/`.

    Accuracy is the mean over prompts; the mean over rollouts beside it is pulled towards the
    prompts that got more of them.
    """
    sums, longest_here = _sums(batch)
    totals, (longest,) = all_sum_and_max(list(sums.values()), [longest_here])
    s = dict(zip(sums, totals, strict=True))
    kinds = ("all_wrong", "all_right", "mixed")
    row = {
        "accuracy": s["accuracy"] / s["prompts"],
        "accuracy_rollouts": s["correct"] / s["n"],
        "reward": s["reward"] / s["n"],
        "truncated": s["truncated"] / s["n"],
        "length": s["tokens"] / s["n"],
        "length_max": longest,
        "n": s["n"],
        "tokens": s["tokens"],
        "n_rounds": float(batch.rounds),
        **{kind: s[kind] / s["prompts"] for kind in kinds},
        **{f"{kind}_n": s[kind] for kind in kinds},
    }
    if batch.grad_norms is not None:
        row |= _grad_norms(batch.grad_norms, batch.tensor("correct"))
    metrics = {f"rollout/{name}": value for name, value in row.items()}
    return metrics | {"budget/spent": s["n"], "budget/effective": s["effective"]}


def _sums(batch: RolloutBatch) -> tuple[dict[str, float], float]:
    """What this rank adds to the figures of a step, and its longest completion."""
    correct = batch.tensor("correct")
    sizes = batch.group_sizes
    sampled = sizes > 0  # an allocation may leave prompts out
    right = _per_prompt(correct, batch.tensor("group"), batch.n_prompts)[sampled]
    shares = right / sizes[sampled]
    lengths = batch.tensor("completion_mask").sum(dim=1)
    mixed = (shares > 0) & (shares < 1)
    sums = {
        "prompts": float(sampled.sum()),
        "n": float(batch.n_rollouts),
        "tokens": float(lengths.sum()),
        "accuracy": float(shares.sum()),
        "correct": float(correct.sum()),
        "reward": float(batch.tensor("rewards").sum()),
        "truncated": float(batch.tensor("truncated").sum()),
        "all_wrong": float((shares == 0).sum()),
        "all_right": float((shares == 1).sum()),
        "mixed": float(mixed.sum()),
        "effective": float(sizes[sampled][mixed].sum()),
    }
    return sums, float(lengths.max())


def resources(batch: RolloutBatch, device: torch.device) -> dict[str, float]:
    """What the step took of the machine, over all ranks.

    `resources/cpu_s` are processor seconds of the training processes (all threads, vLLM in the
    process included; not the reward workers); `resources/memory_gib` the largest resident memory
    that one of them ever had, `resources/gpu_memory_gib` the largest that torch allocated.
    """
    own = {"resources/memory_gib": peak_memory_gib()}
    if device.type == "cuda":
        own["resources/gpu_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    (cpu_s,), largest = all_sum_and_max([time.process_time() - batch.born_cpu], list(own.values()))
    return {"resources/cpu_s": cpu_s, **dict(zip(own, largest, strict=True))}


def prompt_rows(batch: RolloutBatch) -> dict[str, list[Any]]:
    """Per-prompt counts of this rank, the columns of a row of prompts.jsonl.

    Where gradients were measured, `grad_norm` is the mean norm over a prompt's rollouts, beside
    the means over right and over wrong ones.
    """
    right = _per_prompt(batch.tensor("correct"), batch.tensor("group"), batch.n_prompts)
    heat = _per_prompt(batch.tensor("temperatures"), batch.tensor("group"), batch.n_prompts)
    unknown = [float("nan")] * batch.n_prompts
    norms: dict[str, Any] = {}
    if batch.grad_norms is not None:
        total = _per_prompt(batch.grad_norms, batch.tensor("group"), batch.n_prompts)
        by_class = {k: v for k, v in norm_moments(batch).items() if not k.endswith("squared")}
        norms = {"grad_norm": total / batch.group_sizes} | by_class
    return {
        "prompt_id": batch.prompt_ids,
        "source": batch.sources,
        "n": batch.group_sizes.tolist(),
        "correct": [round(x) for x in right.tolist()],
        "rank": unknown if batch.ranks is None else batch.ranks.tolist(),
        "temperature": (heat / batch.group_sizes).tolist(),  # mean of its rollouts, NaN of none
        **{name: values.tolist() for name, values in norms.items()},
    }


def sample_completions(batch: RolloutBatch, count: int) -> list[dict[str, Any]]:
    """Evenly spaced rollouts of this rank as rows of completions.jsonl."""
    batch.require("completions")
    group = batch.tensor("group").tolist()
    rows = torch.linspace(0, batch.n_rollouts - 1, min(count, batch.n_rollouts)).long().tolist()
    return [
        {
            "prompt_id": batch.prompt_ids[group[row]],
            "prompt": batch.prompts[group[row]],
            "completion": (batch.completions or [])[row],
            "answer": batch.answers[group[row]],
            "reward": float(batch.tensor("rewards")[row]),
            "advantage": float(batch.tensor("advantages")[row]),
            "temperature": float(batch.tensor("temperatures")[row]),
            "tokens": int(batch.tensor("completion_mask")[row].sum()),
            "truncated": bool(batch.tensor("truncated")[row]),
        }
        for row in rows
    ]


def _grad_norms(norms: Tensor, correct: Tensor) -> dict[str, float]:
    """Means over all right and all wrong rollouts, NaN of none."""
    right = correct.double()
    metrics: dict[str, float] = {}
    for name, weight in (("grad_norm_right", right), ("grad_norm_wrong", 1 - right)):
        total, count = all_sum([float((weight * norms).sum()), float(weight.sum())])
        metrics[name] = total / count if count else math.nan
    return metrics


def _per_prompt(values: Tensor, group: Tensor, n_prompts: int) -> Tensor:
    """(N,) values summed by prompt -> (P,) float64."""
    sums = torch.zeros(n_prompts, dtype=torch.float64, device=values.device)
    return sums.index_add(0, group, values.double())

"""Slot `pass_at_k`: what is sampled in validation, and the unbiased pass@k of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from numpy.typing import NDArray

from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import Slot
from e3rl.callbacks.validation_plan import Evaluation, ValidationPlan
from e3rl.ledger_logger import ledgers, log_row
from e3rl.reduce import all_gather
from e3rl.statistics.bootstrap import cluster_bootstrap
from e3rl.statistics.pass_at_k import pass_at_k


@dataclass(frozen=True)
class Counts:
    """One evaluation of some problems: what pass@k and its intervals are made from."""

    name: str
    temperature: float
    problem_id: list[str]
    source: list[str]
    n: list[int]
    correct: list[int]
    entropy_sum: float
    tokens: int
    truncated: int


class PassAtK(Slot):
    """Validates with its own temperatures and seeds, whatever training samples at.

    Args:
        evaluations: ways of sampling, each with a name that its metrics carry.
        ks: values of k; those above an evaluation's n are left out.
        seed: noise of validation, the same in every run, arm and step.
    """

    slot = "pass_at_k"
    reads = ("temperature_of",)
    writes = ("plan", "temperature_of")

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        seed: int = 20_250_518,
    ) -> None:
        names = [evaluation.name for evaluation in evaluations]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"evaluations are named {names}: give one or more, each its own name")
        if min(ks) < 1:
            raise ValueError(f"ks={list(ks)}: every k must be at least 1")
        self.evaluations = list(evaluations)
        self.ks = sorted(ks)
        self.seed = seed
        self.results: list[Counts] = []  # of the last validation
        self._plan = ValidationPlan([])
        self._collected: list[Counts] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._plan = ValidationPlan(
            [e for e in self.evaluations if _is_last(trainer) or not e.last_only]
        )
        self._collected = []

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        live = 1.0 if batch.temperature_of is None else float(batch.temperature_of([0], [0])[0])
        batch.stream = (self.seed, "validation")
        batch.plan = self._plan.begin(batch, live)
        batch.temperature_of = self._plan.temperature_of

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._collected += [
            count_correct(batch, segment.evaluation, segment.start, segment.n, segment.temperature)
            for segment in self._plan.segments
            if segment.evaluation
        ]

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        parts = [part for rank_parts in all_gather(self._collected) for part in rank_parts]
        names = dict.fromkeys(part.name for part in parts)
        self.results = [merge([p for p in parts if p.name == name]) for name in names]
        step = int(trainer.fit_loop.total_batch_idx) + 1
        row: dict[str, float] = {}
        for counts in self.results:
            row |= metrics(counts, self.ks)
            for ledger in ledgers(trainer):
                ledger.log_row("validation", {"rollout_step": step, **vars(counts)})
        log_row(trainer, row, step)


def _is_last(trainer: Trainer) -> bool:
    """Whether no training step follows in this fit; a baseline before it is never the last."""
    if trainer.state.fn != TrainerFn.FITTING:
        return False
    total = (trainer.max_epochs or 0) * trainer.num_training_batches
    return bool(trainer.fit_loop.total_batch_idx + 1 >= total)


def count_correct(batch: RolloutBatch, name: str, start: int, n: int, temperature: float) -> Counts:
    """Counts of the rollouts whose sample index lies in [start, start + n)."""
    sample = batch.tensor("sample")
    rows = (sample >= start) & (sample < start + n)
    right = batch.tensor("group")[rows][batch.tensor("correct")[rows] > 0.5]
    return Counts(
        name=name,
        temperature=temperature,
        problem_id=batch.prompt_ids,
        source=batch.sources,
        n=[n] * batch.n_prompts,
        correct=right.bincount(minlength=batch.n_prompts).tolist(),
        entropy_sum=-float(batch.tensor("sampler_logprobs")[rows].double().sum()),
        tokens=int(batch.tensor("completion_mask")[rows].sum()),
        truncated=int(batch.tensor("truncated")[rows].sum()),
    )


def merge(parts: Sequence[Counts]) -> Counts:
    """One evaluation over all batches and ranks; a problem that ranks share counts once."""
    seen: dict[str, tuple[str, int, int]] = {}
    for part in parts:
        rows = zip(part.problem_id, part.source, part.n, part.correct, strict=True)
        for problem_id, source, n, correct in rows:
            seen.setdefault(problem_id, (source, n, correct))
    return Counts(
        name=parts[0].name,
        temperature=parts[0].temperature,
        problem_id=list(seen),
        source=[source for source, _, _ in seen.values()],
        n=[n for _, n, _ in seen.values()],
        correct=[correct for _, _, correct in seen.values()],
        entropy_sum=sum(part.entropy_sum for part in parts),
        tokens=sum(part.tokens for part in parts),
        truncated=sum(part.truncated for part in parts),
    )


def metrics(counts: Counts, ks: Sequence[int]) -> dict[str, float]:
    """pass@k with 95% intervals over problems, per source, and what sampling looked like."""
    n, c = np.array(counts.n), np.array(counts.correct)
    rollouts = int(n.sum())
    row: dict[str, float] = {}
    for k in (k for k in ks if k <= n.min()):
        row |= _with_interval(f"pass@{k}", pass_at_k(n, c, k))
    row[f"mean@{n.min()}"] = float((c / n).mean())
    sources = np.array(counts.source)
    for source in sorted(set(counts.source)):
        row[f"source/{source}/pass@1"] = float((c / n)[sources == source].mean())
    row |= {
        "temperature": counts.temperature,
        "entropy": counts.entropy_sum / counts.tokens,
        "length": counts.tokens / rollouts,
        "truncated": counts.truncated / rollouts,
    }
    return {f"val/{counts.name}/{key}": value for key, value in row.items()}


def _with_interval(name: str, values: NDArray[np.float64]) -> dict[str, float]:
    interval = cluster_bootstrap(values)
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}

"""Slot `pass_at_k`: what is sampled in validation, and the unbiased pass@k of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import Slot, rollout_step, total_steps
from e3rl.callbacks.validation_schedule import Evaluation, Segment, ValidationSchedule
from e3rl.ledger.logger import ledgers, log_row
from e3rl.process.distributed import all_gather
from e3rl.statistics.interval import Interval
from e3rl.statistics.means import mean_over_units
from e3rl.statistics.pass_at_k import max_at_k, pass_at_k
from e3rl.statistics.shares import share_interval


@dataclass(frozen=True)
class ProblemTally:
    """One problem's rollouts in one evaluation."""

    name: str
    temperature: float
    problem_id: str
    source: str
    n: int
    correct: int
    entropy_sum: float  # nats
    tokens: int
    truncated: int
    top_p: float = 1.0
    top_k: int = 0
    no_answer: int | None = None  # completions without one; None where it was not counted
    rewards: list[float] | None = None  # of its rollouts, where one is not what `correct` says
    shared_with: str | None = None  # the evaluation whose rollouts these are
    scatter: list[float] | None = None  # over its rollouts: variances and covariance, see `scatter`


@dataclass(frozen=True)
class EvaluationCounts:
    """One evaluation of all problems: what pass@k and its intervals are made from."""

    name: str
    temperature: float
    problem_id: list[str]
    source: list[str]
    n: list[int]
    correct: list[int]
    entropy_sum: float
    tokens: int
    truncated: int
    top_p: float = 1.0
    top_k: int = 0
    no_answer: int | None = None  # completions without one; None where it was not counted
    rewards: list[list[float]] | None = None  # by problem, where one is not what `correct` says
    shared_with: str | None = None  # the evaluation whose rollouts these are
    entropy_error: float | None = (
        None  # standard error of entropy_sum / tokens, nats; these problems
    )


class PassAtK(Slot):
    """Validates with its own temperatures and seeds, whatever training samples at.

    Args:
        evaluations: ways of sampling, each with a name that its metrics carry.
        ks: values of k; those above an evaluation's n are left out.
        seed: noise of validation: arms of one seed share it, step after step.
    """

    slot = "pass_at_k"
    validation_reads = ("base_temperature",)
    validation_writes = ("allocation", "temperature_of", "truncation_of")

    def __init__(
        self,
        evaluations: Sequence[Evaluation],
        ks: Sequence[int] = (1, 2, 4, 8, 16),
        seed: int = 0,
    ) -> None:
        names = [evaluation.name for evaluation in evaluations]
        if len(set(names)) != len(names) or not names:
            raise ValueError(f"evaluations are named {names}: give one or more, each its own name")
        if asked := [each.name for each in evaluations if each.entropy is not None]:
            raise ValueError(
                f"evaluations {asked} ask for an entropy, which a validation does not look for: "
                "give them a temperature; `e3rl evaluate entropies=[...]` finds one"
            )
        if not ks or min(ks) < 1:
            raise ValueError(f"ks={list(ks)}: give one or more, each at least 1")
        self.evaluations = list(evaluations)
        self.ks = sorted(ks)
        self.seed = seed
        self.results: list[EvaluationCounts] = []  # of the last validation
        self._schedule = ValidationSchedule([])
        self._collected: list[ProblemTally] = []

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        last = _is_last(trainer)
        self._schedule = ValidationSchedule(
            [e.at_last() if last else e for e in self.evaluations if last or not e.last_only]
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
        batch.require("base_temperature")
        assert batch.base_temperature is not None
        batch.stream = (self.seed, "validation")
        batch.allocation = self._schedule.begin(batch, batch.base_temperature)
        batch.temperature_of = self._schedule.temperature_of
        batch.truncation_of = self._schedule.truncation_of

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        for segment in self._schedule.segments:
            self._collected += tally_segment(batch, segment)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        tallies = [each for shard in all_gather(self._collected) for each in shard]
        names = dict.fromkeys(each.name for each in tallies)
        self.results = [merge_tallies([t for t in tallies if t.name == name]) for name in names]
        # A sanity check sees some problems only; all evaluations may wait for the last validation.
        if trainer.sanity_checking or not self.results:
            return
        step = rollout_step(trainer) + 1
        row: dict[str, float] = {}
        for counts in self.results:
            row |= metrics(counts, self.ks)
            for ledger in ledgers(trainer):
                known = {key: x for key, x in vars(counts).items() if x is not None}
                ledger.log_row("validation", {"rollout_step": step, **known})
        log_row(trainer, row, step)


def _is_last(trainer: Trainer) -> bool:
    """Whether no training step follows in this fit; a baseline before it is never the last."""
    if trainer.state.fn != TrainerFn.FITTING:
        return False
    return rollout_step(trainer) + 1 >= total_steps(trainer)


def tally_segment(batch: RolloutBatch, segment: Segment) -> list[ProblemTally]:
    """What the rollouts of a segment came to, prompt by prompt."""
    sample = batch.tensor("sample")
    rows = (sample >= segment.start) & (sample < segment.start + segment.n)
    group = batch.tensor("group")[rows]

    def by_prompt(values: Tensor) -> list[float]:
        sums = torch.zeros(batch.n_prompts, dtype=torch.float64, device=group.device)
        return sums.index_add(0, group, values[rows].double()).tolist()

    def counted(values: Tensor) -> list[int]:
        return [round(each) for each in by_prompt(values)]

    surprisal = _surprisal(batch, segment)
    lengths = batch.tensor("completion_mask").sum(dim=1)
    shared: dict[str, Any] = {
        **{"name": segment.evaluation, "temperature": segment.temperature, "n": segment.n},
        **{"top_p": segment.top_p, "top_k": segment.top_k, "shared_with": segment.shared_with},
    }
    columns: dict[str, Sequence[Any]] = {
        "problem_id": batch.prompt_ids,
        "source": batch.sources,
        "correct": counted(batch.tensor("correct")),
        "entropy_sum": by_prompt(surprisal),
        "tokens": counted(lengths),
        "truncated": counted(batch.tensor("truncated")),
        "no_answer": counted(_lacks_answer(batch)),
        "rewards": _partial_rewards(batch, rows),
        "scatter": scatter(surprisal[rows], lengths[rows], group, batch.n_prompts),
    }
    found = zip(*columns.values(), strict=True)
    return [ProblemTally(**shared, **dict(zip(columns, each, strict=True))) for each in found]


def scatter(
    surprisal: Tensor, lengths: Tensor, group: Tensor, n_prompts: int
) -> list[list[float] | None]:
    """How the rollouts of each prompt differ: variance of surprisal, covariance, of lengths.

    All are of the prompt's sums over its rollouts, n^2 Var(mean); None for a single rollout.
    """
    values = torch.stack([surprisal.double(), lengths.double()])
    n = torch.bincount(group, minlength=n_prompts).double()
    means = torch.zeros(2, n_prompts, dtype=torch.float64, device=group.device)
    means = means.index_add(1, group, values) / n
    s, t = values - means[:, group]
    products = torch.zeros(3, n_prompts, dtype=torch.float64, device=group.device)
    products = products.index_add(1, group, torch.stack([s * s, s * t, t * t])) * n / (n - 1)
    return [
        [float(f"{x:.6g}") for x in column] if count > 1 else None
        for column, count in zip(products.T.tolist(), n.tolist(), strict=True)
    ]


def entropy_error(problems: Sequence[ProblemTally]) -> float | None:
    """Standard error of the ratio of summed surprisal to tokens, problems given (delta method)."""
    spreads = [p.scatter for p in problems]
    if any(spread is None for spread in spreads):
        return None
    ss, st, tt = (math.fsum(spread[i] for spread in spreads if spread) for i in range(3))
    tokens = sum(p.tokens for p in problems)
    ratio = math.fsum(p.entropy_sum for p in problems) / tokens
    return math.sqrt(max(0.0, ss - 2 * ratio * st + ratio**2 * tt)) / tokens


def _surprisal(batch: RolloutBatch, segment: Segment) -> Tensor:
    """(N,) nats of every rollout at the temperature of a segment."""
    surprisal = -batch.tensor("sampler_logprobs").double().sum(dim=1)
    # Engines score a greedy choice at temperature 1.
    return torch.zeros_like(surprisal) if segment.temperature == 0 else surprisal


def _partial_rewards(batch: RolloutBatch, rows: Tensor) -> list[list[float] | None]:
    """The rewards of each prompt's rollouts among `rows`; None where a right one has 1 and a wrong
    one 0, which `correct` says already."""
    columns = (batch.tensor(name)[rows].tolist() for name in ("group", "rewards", "correct"))
    found: list[list[float]] = [[] for _ in range(batch.n_prompts)]
    more_to_say = [False] * batch.n_prompts
    for prompt, reward, correct in zip(*columns, strict=True):
        found[prompt].append(round(reward, 6))  # float32 has no more
        more_to_say[prompt] |= found[prompt][-1] != float(correct)
    return [own if more else None for own, more in zip(found, more_to_say, strict=True)]


def _lacks_answer(batch: RolloutBatch) -> Tensor:
    """(N,) bool, rollouts without an answer in the form that the reward reads."""
    batch.require("given_answers")
    lacking = [answer is None for answer in batch.given_answers or []]
    return torch.tensor(lacking, device=batch.tensor("sample").device)


def merge_tallies(tallies: Sequence[ProblemTally]) -> EvaluationCounts:
    """One evaluation over all batches and ranks; a problem that ranks share counts once."""
    seen: dict[str, ProblemTally] = {}
    for each in tallies:
        seen.setdefault(each.problem_id, each)
    problems = list(seen.values())
    return EvaluationCounts(
        name=problems[0].name,
        temperature=problems[0].temperature,
        problem_id=list(seen),
        source=[p.source for p in problems],
        n=[p.n for p in problems],
        correct=[p.correct for p in problems],
        entropy_sum=math.fsum(p.entropy_sum for p in problems),
        tokens=sum(p.tokens for p in problems),
        truncated=sum(p.truncated for p in problems),
        top_p=problems[0].top_p,
        top_k=problems[0].top_k,
        no_answer=_sum_known([p.no_answer for p in problems]),
        rewards=_all_rewards(problems),
        shared_with=problems[0].shared_with,
        entropy_error=entropy_error(problems),
    )


def _all_rewards(problems: Sequence[ProblemTally]) -> list[list[float]] | None:
    """Rewards by problem where any says more than what is correct."""
    if all(p.rewards is None for p in problems):
        return None
    return [p.rewards or [1.0] * p.correct + [0.0] * (p.n - p.correct) for p in problems]


def _sum_known(counts: Sequence[int | None]) -> int | None:
    """The sum; None where a count is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def metrics(counts: EvaluationCounts, ks: Sequence[int]) -> dict[str, float]:
    """pass@k with 95% intervals over problems, per source, and what sampling looked like.

    Where rewards are more than right or wrong also their mean and max@k, the largest of k.
    """
    n, c = np.array(counts.n), np.array(counts.correct)
    rollouts = int(n.sum())
    row: dict[str, float] = {}
    for k in (k for k in ks if k <= n.min()):
        row |= _with_interval(f"pass@{k}", share_interval(pass_at_k(n, c, k)))
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
    if counts.rewards is not None:
        row["reward"] = float(np.mean([np.mean(own) for own in counts.rewards]))
        for k in (k for k in ks if k <= n.min()):
            largest = np.array([max_at_k(own, k) for own in counts.rewards])
            row |= _with_interval(f"max@{k}", mean_over_units(largest).interval())
    if counts.no_answer is not None:
        row["no_answer"] = counts.no_answer / rollouts
    return {f"val/{counts.name}/{key}": value for key, value in row.items()}


def _with_interval(name: str, interval: Interval) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}

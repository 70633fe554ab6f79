"""Slot `evaluation_log`: writes down the finished problems of an evaluation."""

from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer

from e3rl.batch import RolloutBatch
from e3rl.callbacks.pass_at_k import tally_segment
from e3rl.callbacks.slot import Slot
from e3rl.callbacks.validation_schedule import Segment, ValidationSchedule
from e3rl.evaluation.log import EvaluationLog
from e3rl.rewards.equivalence import answer_classes
from e3rl.rewards.pool import RewardPool

Row = dict[str, Any]


class EvaluationRecorder(Slot):
    """Appends each batch's problems to a log once all their rollouts are scored.

    Equal answers are found here, while the verifier's workers have nothing else to do. It runs in
    one process: a log has one writer.

    Args:
        log: where to.
        pool: the verifier that judged the answers.
    """

    slot = "evaluation_log"
    validation_reads = ("allocation", "completions", "given_answers", "correct")

    def __init__(self, log: EvaluationLog, pool: RewardPool) -> None:
        self.written = log  # Lightning gives callbacks a `log` of its own
        self.pool = pool

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        schedule = batch.allocation
        assert isinstance(schedule, ValidationSchedule)
        progress = trainer.progress_bar_callback is not None
        columns = rollout_columns(batch, self.pool)
        tables = [
            segment_rows(batch, each, columns, self.pool, progress) for each in schedule.segments
        ]
        for i, problem_id in enumerate(batch.prompt_ids):
            problem = {
                "problem_id": problem_id,
                "source": batch.sources[i],
                "prompt": batch.prompts[i],
                "answer": batch.answers[i],
                "evaluations": [counts[i] for counts, _ in tables],
            }
            self.written.append(
                problem, [row for _, completions in tables for row in completions[i]]
            )


def segment_rows(
    batch: RolloutBatch,
    segment: Segment,
    columns: Mapping[str, list[Any]],
    pool: RewardPool,
    progress: bool = False,
) -> tuple[list[Row], list[list[Row]]]:
    """One evaluation's counts of every problem, and its completions by problem.

    Counts have the fields of a `ProblemTally` and, by sample, whether it is `right`, the class of
    its answer (`classes`) and its `lengths` in tokens.
    """
    samples = batch.tensor("sample").tolist()
    groups: list[list[int]] = [[] for _ in range(batch.n_prompts)]  # rows of the batch, by problem
    for row, prompt in enumerate(batch.tensor("group").tolist()):
        if segment.start <= samples[row] < segment.start + segment.n:
            groups[prompt].append(row)
    answers = [[(columns["read"][r], columns["right"][r]) for r in rows] for rows in groups]
    classes = answer_classes(pool, answers, progress)
    counts, completions = [], []
    for each, rows, numbers in zip(tally_segment(batch, segment), groups, classes, strict=True):
        by_sample = {name: [columns[name][row] for row in rows] for name in ("right", "lengths")}
        counts.append(vars(each) | by_sample | {"classes": numbers})
        completions.append(
            [
                {
                    "evaluation": segment.evaluation,
                    "problem_id": each.problem_id,
                    "sample": samples[row] - segment.start,
                    "completion": columns["completion"][row],
                    "given_answer": columns["given_answer"][row],
                    "class": number,
                    "correct": columns["right"][row],
                    "tokens": columns["lengths"][row],
                    "truncated": columns["truncated"][row],
                }
                for row, number in zip(rows, numbers, strict=True)
            ]
        )
    return counts, completions


def rollout_columns(batch: RolloutBatch, pool: RewardPool) -> Mapping[str, list[Any]]:
    """What is written of every rollout (N), by name; `read` is the answer as it stands there."""
    batch.require("completions", "given_answers")
    completions = batch.completions or []
    return {
        "completion": completions,
        "given_answer": batch.given_answers or [],
        "read": [pool.read(text) for text in completions],
        "right": (batch.tensor("correct") > 0.5).tolist(),
        "lengths": batch.tensor("completion_mask").sum(dim=1).tolist(),
        "truncated": batch.tensor("truncated").tolist(),
    }

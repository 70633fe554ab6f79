"""Slot `reward`: scores completions in worker processes while others are being generated."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from lightning import LightningModule, Trainer

from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.callbacks.slot import Slot
from e3rl.ledger.clock import REWARD
from e3rl.process.distributed import all_gather, rank
from e3rl.rewards.answer_reader import READ_ANSWERS
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.verdict import STATUSES, Verdict

log = logging.getLogger(__name__)

PART = "reward/part/"  # and the name of a reward among several: its mean over rollouts
COUNTS = tuple(f"reward/{name}" for name in (*STATUSES, "no_answer"))

# (rewards (n,), completion tokens (n,), difficulty ranks (n,)) -> rewards (n,)
Shaping = Callable[[Sequence[float], Sequence[int], Sequence[float]], Sequence[float]]


class RewardScorer(Slot):
    """Puts a scorer on every batch, in training and in validation.

    Args:
        pool: the verifier's worker processes.
        shaping: optional change of training rewards by length and difficulty.
    """

    slot = "reward"
    writes = validation_writes = ("scorer",)

    def __init__(self, pool: RewardPool, shaping: Shaping | None = None) -> None:
        self.pool = pool
        self.shaping = shaping
        self.reads = ("ranks",) if shaping else ()
        self._warned = False
        self.totals: Counter[str] = Counter()  # training verdicts of the run so far, by status

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self.pool.self_test()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        for each in (batch, *batch.upcoming.values()):
            each.scorer = self._scorer(trainer, each, self.shaping)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        batch.scorer = self._scorer(trainer, batch, None)

    def _scorer(
        self, trainer: Trainer, batch: RolloutBatch, shaping: Shaping | None
    ) -> "PooledScorer":
        waiting = partial(trainer.profiler.profile, REWARD)  # type: ignore[attr-defined]
        return PooledScorer(self.pool, batch, shaping, _shows_progress(trainer), waiting)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        own = {n: batch.metrics.get(n, 0.0) for n in (*COUNTS, *_parts(batch))}
        gathered = all_gather((own, _count_stopped(batch)))
        ranks = [counts for counts, _ in gathered]
        parts = sorted({name for own in ranks for name in own} - {*COUNTS})
        names = [*COUNTS, *parts]
        sums = {name: float(sum(own.get(name, 0.0) for own in ranks)) for name in names}
        self.totals.update({s: int(sums[f"reward/{s}"]) for s in (*STATUSES, "no_answer")})
        judged = sum(sums[f"reward/{status}"] for status in STATUSES)
        batch.metrics |= {n: sums[n] / judged if n in parts else sums[n] for n in names}
        stopped, unanswered = (sum(each) for each in zip(*(n for _, n in gathered), strict=True))
        without = sums["reward/no_answer"] - unanswered
        self._warn_of_missing_answers(batch, without, judged - stopped)

    def _warn_of_missing_answers(self, batch: RolloutBatch, without: float, judged: float) -> None:
        """Once, where most completions of a step that were not stopped have no answer to judge."""
        if self._warned or rank() > 0 or without <= judged / 2:
            return
        self._warned = True
        cut = float(batch.tensor("truncated")[batch.counts() > 0].float().mean())
        log.warning(
            "%.0f%% of this step's completions have no answer that the reward can read, and "
            "%.0f%% reach max_new_tokens: whatever the policy knows, it earns nothing. %s, or "
            "raise max_new_tokens",
            100 * without / judged,
            100 * cut,
            READ_ANSWERS,
        )

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.pool.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.pool.close()

    def state_dict(self) -> dict[str, Any]:
        return {"totals": dict(self.totals), "warned": self._warned}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.totals = Counter(state_dict["totals"])
        self._warned = state_dict.get("warned", False)


def count_verdicts(verdicts: Sequence[Verdict]) -> Counter[str]:
    """Verdicts by status, those without an answer, and sums of the parts of rewards, by metric."""
    counts: Counter[str] = Counter(f"reward/{verdict.status}" for verdict in verdicts)
    counts["reward/no_answer"] = sum(verdict.answer is None for verdict in verdicts)
    for verdict in verdicts:
        counts.update({f"{PART}{name}": value for name, value in verdict.parts.items()})
    return counts


def _count_stopped(batch: RolloutBatch) -> tuple[int, int]:
    """Rollouts that an abort stopped, and those of them without an answer."""
    weights, answers = batch.tensor("weights").tolist(), batch.given_answers or []
    stopped = [answer for answer, weight in zip(answers, weights, strict=True) if weight == 0]
    return len(stopped), stopped.count(None)


def _parts(batch: RolloutBatch) -> list[str]:
    return [name for name in batch.metrics if name.startswith(PART)]


def _shows_progress(trainer: Trainer) -> bool:
    return trainer.is_global_zero and trainer.progress_bar_callback is not None


class PooledScorer:
    """Scores one batch's rollouts; fits `batch.scorer`.

    `time/reward_saved_s` of the batch's metrics is what scoring while others are generated has
    saved: Σ over rounds of max(0, S - W), where W is the time waited for scores after the last
    rollout, and S what the same comparisons take on the same workers when they begin only then
    (`RewardPool.scoring_s`; a lower estimate, since handing work over costs time too).
    """

    def __init__(
        self,
        pool: RewardPool,
        batch: RolloutBatch,
        shaping: Shaping | None,
        progress: bool,
        waiting: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._pool = pool
        self._progress = progress
        self._waiting_for_scores = waiting
        self._batch = batch
        self._shaping = shaping
        self._waiting: list[Rollout] = []

    def submit(self, rollout: Rollout) -> None:
        row = rollout.prompt
        self._pool.submit(rollout.text, self._batch.question(row))
        self._waiting.append(rollout)

    def collect(self) -> list[RolloutScore]:
        rollouts, self._waiting = self._waiting, []
        started = time.monotonic()
        with self._waiting_for_scores():
            verdicts = self._pool.collect(self._progress)
        waited = time.monotonic() - started
        saved = self._batch.metrics.get("time/reward_saved_s", 0.0)
        saved += max(0.0, self._pool.scoring_s - waited)
        self._batch.metrics["time/reward_saved_s"] = saved
        for name, value in count_verdicts(verdicts).items():  # of this rank, until the step ends
            self._batch.metrics[name] = self._batch.metrics.get(name, 0.0) + value
        rewards: Sequence[float] = [verdict.reward for verdict in verdicts]
        if self._shaping is not None:
            ranks = self._batch.ranks_for_shaping()
            lengths = [len(rollout.tokens) for rollout in rollouts]
            rewards = self._shaping(rewards, lengths, [ranks[r.prompt] for r in rollouts])
        return [
            RolloutScore(float(verdict.is_correct), float(reward), verdict.answer)
            for verdict, reward in zip(verdicts, rewards, strict=True)
        ]

"""Slot `rollout`: samples the rounds of an allocation and has them scored meanwhile."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import torch
from lightning import LightningModule, Trainer

from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.callbacks.slot import Slot, rollout_step
from e3rl.engines.abort import MarkerGatedAbort
from e3rl.engines.base import (
    HoldingEngine,
    ManagedEngine,
    PlannedEngine,
    RolloutEngine,
    RolloutRequest,
    check_rollout,
)
from e3rl.ledger.clock import SYNC
from e3rl.policy.policy import Policy
from e3rl.process.distributed import all_sum
from e3rl.seeds import derive_seed


class RolloutSampler(Slot):
    """Owns the engine: keeps its weights current and closes it.

    The same object samples in training and in validation, so pass@k measures the code that is
    trained with. Every rollout's seed derives from (run seed, stream, prompt id, sample).

    A batch that brings another one along, n steps ahead of it (`rollout.lookahead=n`), has that
    sampled from its own update on, by the policy as it was before: n updates older than the one
    that is going to be trained on it. Batches are sampled in their order, one at a time, and each
    by the version n before its own whatever takes how long, so a run may be repeated and resumed.
    Engines without weights of their own sample right before the update instead, and those that
    cannot hold weights back (`HoldingEngine`) once they have nothing else to do, which gives the
    same rollouts. A checkpoint and a validation wait for all that are being sampled.

    What an allocation says of its decision goes into the metrics of the batch it was made for,
    and so into the checkpoint with its rollouts.

    Args:
        engine: who samples tokens (`engines/`).
        max_new_tokens: length limit of a completion.
        seed: the run's seed; validation batches carry a seed of their own in `stream`.
        abort: which rollouts of training are stopped early, and which go on for them; None: all
            are whole, as they always are in validation.
    """

    slot = "rollout"
    reads = validation_reads = ("allocation", "base_temperature", "temperature_of", "scorer")
    writes = validation_writes = (
        *("group", "sample", "temperatures", "tokens", "lengths", "completion_mask"),
        *("sampler_logprobs", "truncated", "policy_version", "weights", "completions"),
        *("given_answers", "correct", "rewards"),
    )

    def __init__(
        self,
        engine: RolloutEngine,
        max_new_tokens: int,
        seed: int,
        abort: MarkerGatedAbort | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}: use at least 1")
        self.engine = engine
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.abort = abort
        self.version = 0  # finished updates; stamped on every rollout
        self._thread: ThreadPoolExecutor | None = None  # made for the first batch sampled ahead
        # Batches under way, or done and not trained on yet, by the steps that train on them.
        self._ahead: dict[int, RolloutBatch] = {}
        self._stop = Event()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if self.abort is not None:
            policy = policy_of(pl_module)
            self.abort.check(self.max_new_tokens, policy.stop, policy.prefill)

    def plan_for(self, longest_prompt: int) -> None:
        """Tell an engine that wants to know the most tokens that prompts will have."""
        if isinstance(self.engine, PlannedEngine):
            self.engine.plan_for(longest_prompt + self.max_new_tokens)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        policy = policy_of(pl_module)
        if batch.group is None:
            self._seed(batch)
            self._sync(trainer, batch, policy)
            self._sample(batch, policy)
            batch.to(pl_module.device)
        following = {
            rollout_step(trainer) + later: each
            for later, each in batch.upcoming.items()
            if each.allocation is not None
        }
        if following:
            self._sample_ahead(trainer, following, policy)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        policy = policy_of(pl_module)
        self._settle()
        self._sync(trainer, batch, policy)
        self._sample(batch, policy)
        batch.to(pl_module.device)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        ages = self.version - batch.tensor("policy_version").double()
        batch.metrics["policy/age"] = float(ages.mean())  # updates since the rollouts were sampled
        if self.abort is not None:
            stopped = batch.tensor("weights") == 0
            total, all_ranks = all_sum([float(stopped.sum()), stopped.numel()])
            batch.metrics["rollout/stopped"] = total / max(1.0, all_ranks)
        if self._ahead:
            self._finish(batch, rollout_step(trainer) + 1)
        self.version += 1

    def _seed(self, batch: RolloutBatch) -> None:
        if batch.truncation_of is not None:
            raise ValueError(
                "batch.truncation_of is set in training: log-probs of a truncated distribution "
                "are not the policy's, and the gradient would be wrong; leave it to validation"
            )
        batch.stream = (self.seed, *batch.stream)

    def _sync(self, trainer: Trainer, batch: RolloutBatch, policy: Policy) -> None:
        batch.require("allocation", "base_temperature", "temperature_of", "scorer")
        assert batch.base_temperature is not None
        started = time.monotonic()
        with trainer.profiler.profile(SYNC):  # type: ignore[attr-defined]
            self.engine.sync(policy, self.version, batch.base_temperature)
        batch.metrics["time/sync_s"] = time.monotonic() - started

    def _sample(self, batch: RolloutBatch, policy: Policy, rests: bool = True) -> None:
        """All rounds of a batch; may run beside an update, and so touches no weights.

        The engine `rests` afterwards where no batch is sampled from the same weights.
        """
        assert batch.allocation is not None
        started = time.monotonic()
        waited = 0.0
        while (counts := batch.allocation.next(batch)) is not None:
            requests = self._requests(batch, list(counts))
            waited += self._round(batch, requests, policy)
        found = batch.allocation.metrics()  # of a rule of the user's own too: checkpoints keep them
        batch.metrics |= {f"budget/{name}": float(value) for name, value in found.items()}
        if isinstance(self.engine, ManagedEngine):
            if rests:
                self.engine.rest()
            batch.metrics |= self.engine.metrics()
        seconds = time.monotonic() - started
        batch.metrics["time/rollout_s"] = seconds + batch.metrics.get("time/sync_s", 0.0)
        batch.metrics["time/reward_s"] = waited  # the part that generation did not hide

    def _sample_ahead(
        self, trainer: Trainer, batches: Mapping[int, RolloutBatch], policy: Policy
    ) -> None:
        """Have batches, by their steps, sampled by the policy as it is now, behind those before."""
        for batch in batches.values():
            self._seed(batch)
        first, take_over = next(iter(batches.values())), None
        if self._samples_anywhere() and isinstance(self.engine, HoldingEngine):
            take_over = self._hold(trainer, first, policy)
        else:
            self._settle()
            self._sync(trainer, first, policy)
        last = max(batches)
        for step, batch in batches.items():
            if self.engine.holds_weights:
                batch.under_way = self._submit(batch, policy, take_over, rests=step == last)
                self._ahead[step] = batch
                take_over = None
            else:
                self._sample(batch, policy)
                batch.to(policy.device)

    def _samples_anywhere(self) -> bool:
        """Whether a rank samples ahead just now; all of them must ask."""
        if not self._ahead:
            return False  # on no rank, for all sample the same batches
        under_way = [each.under_way for each in self._ahead.values() if each.under_way is not None]
        return all_sum([sum(not each.done() for each in under_way)])[0] > 0

    def _hold(self, trainer: Trainer, batch: RolloutBatch, policy: Policy) -> Callable[[], None]:
        """Have the engine keep the policy's weights for a batch that it is going to sample."""
        batch.require("allocation", "base_temperature", "temperature_of", "scorer")
        assert isinstance(self.engine, HoldingEngine) and batch.base_temperature is not None
        started = time.monotonic()
        with trainer.profiler.profile(SYNC):  # type: ignore[attr-defined]
            take_over = self.engine.hold(policy, self.version, batch.base_temperature)
        batch.metrics["time/sync_s"] = time.monotonic() - started
        return take_over

    def _submit(
        self,
        batch: RolloutBatch,
        policy: Policy,
        take_over: Callable[[], None] | None,
        rests: bool,
    ) -> Future[None]:
        if self._thread is None:
            device = policy.device  # a thread starts on the first GPU, whatever the other ones do
            chosen = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
            self._thread = ThreadPoolExecutor(1, "rollouts", initializer=chosen)

        def sample() -> None:
            failed = True
            try:
                self._go_on()
                if take_over is not None:
                    started = time.monotonic()
                    take_over()
                    batch.metrics["time/sync_s"] += time.monotonic() - started
                    self._go_on()
                self._sample(batch, policy, rests)
                failed = False
            finally:
                if failed:
                    self._stop.set()  # what comes behind is not sampled either

        return self._thread.submit(sample)

    def _go_on(self) -> None:
        """Raise InterruptedError where sampling ahead is to end."""
        if self._stop.is_set():
            raise InterruptedError("the run ended while rollouts were being sampled ahead")

    def _settle(self) -> None:
        """Wait for all rollouts that are being sampled; raises what went wrong with them."""
        for batch in self._ahead.values():
            batch.settle()

    def _finish(self, batch: RolloutBatch, following: int) -> None:
        """Wait for the rollouts of the following step, unless they came with a checkpoint."""
        if following not in self._ahead:
            return
        started = time.monotonic()
        self._ahead[following].settle()
        ahead = self._ahead.pop(following)
        ahead.under_way = None
        waited = time.monotonic() - started  # the rest of the sampling was hidden by the update
        batch.metrics["time/lookahead_wait_s"] = waited
        ahead.to(batch.tensor("tokens").device)

    def _requests(self, batch: RolloutBatch, counts: list[int]) -> list[RolloutRequest]:
        if len(counts) != batch.n_prompts or min(counts) < 0:
            raise ValueError(
                f"the allocation gave counts {counts} for {batch.n_prompts} prompts: 0 or more each"
            )
        assert batch.temperature_of is not None
        before = batch.group_sizes.tolist()
        places = [(row, before[row] + j) for row, count in enumerate(counts) for j in range(count)]
        rows, samples = [row for row, _ in places], [j for _, j in places]
        taus = batch.temperature_of(rows, samples)
        whole = [(1.0, 0)] * len(places)
        cuts = batch.truncation_of(rows, samples) if batch.truncation_of else whole
        return [
            RolloutRequest(
                prompt=row,
                sample=j,
                prompt_tokens=tuple(batch.prompt_tokens[row]),
                temperature=float(tau),
                seed=derive_seed(*batch.stream, batch.prompt_ids[row], j),
                max_new_tokens=self.max_new_tokens,
                # Validation must not depend on the clock.
                may_be_cut=batch.truncation_of is None,
                top_p=top_p,
                top_k=top_k,
            )
            for (row, j), tau, (top_p, top_k) in zip(places, taus, cuts, strict=True)
        ]

    def _round(self, batch: RolloutBatch, requests: list[RolloutRequest], policy: Policy) -> float:
        """Generate and score one round; returns the seconds spent waiting for scores."""
        assert batch.scorer is not None
        asked = {(request.prompt, request.sample): request for request in requests}
        arrived: list[Rollout] = []
        for rollout in self._generate(batch, requests, policy):
            self._go_on()
            if (request := asked.get((rollout.prompt, rollout.sample))) is not None:
                check_rollout(rollout, request, policy.vocabulary_size)
            batch.scorer.submit(rollout)
            arrived.append(rollout)
        waiting = time.monotonic()
        scores = batch.scorer.collect()
        waited = time.monotonic() - waiting
        # Engines finish in any order; the batch has one order only.
        places = [(rollout.prompt, rollout.sample) for rollout in arrived]
        order = sorted(range(len(arrived)), key=places.__getitem__)
        if [places[i] for i in order] != [(r.prompt, r.sample) for r in requests]:
            raise RuntimeError(
                f"the engine returned {len(order)} rollouts for {len(requests)} requests, "
                f"{len(set(places))} of them different: it must return each of them once"
            )
        judged = [_judged(arrived[i], scores[i]) for i in order]
        batch.extend([arrived[i] for i in order], judged, policy.pad_id)
        return waited

    def _generate(
        self, batch: RolloutBatch, requests: list[RolloutRequest], policy: Policy
    ) -> Iterator[Rollout]:
        validates = batch.truncation_of is not None
        if self.abort is None or validates:
            return self.engine.generate(requests)
        return self.abort.sample(self.engine, requests, policy.answer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self._close()

    def _close(self) -> None:
        """Let no thread use the engine any more, then close it."""
        if self._thread is not None:
            self._stop.set()
            if self._ahead and isinstance(self.engine, ManagedEngine):
                self.engine.interrupt()
            self._thread.shutdown(cancel_futures=True)
            self._stop.clear()
            self._ahead.clear()
            self._thread = None
        self.engine.close()

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.version = int(state_dict["version"])


def _judged(rollout: Rollout, score: RolloutScore) -> RolloutScore:
    """A rollout's score; one that was stopped is wrong, whatever its text may be read as."""
    return score if rollout.weight else replace(score, correct=0.0, reward=0.0)


def policy_of(pl_module: LightningModule) -> Policy:
    policy = pl_module.policy
    assert isinstance(policy, Policy)
    return policy

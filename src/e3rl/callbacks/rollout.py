"""Slot `rollout`: samples the rounds of a plan and has them scored meanwhile."""

import time
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer

from e3rl.batch import Rollout, RolloutBatch
from e3rl.callbacks.slot import Slot
from e3rl.engines.base import ManagedEngine, RolloutEngine, RolloutRequest
from e3rl.policy import Policy
from e3rl.seeds import derive_seed


class RolloutSampler(Slot):
    """Owns the engine: keeps its weights current and closes it.

    The same object samples in training and in validation, so pass@k measures the code that is
    trained with. Every rollout's seed derives from (run seed, stream, prompt id, sample).

    Args:
        engine: who samples tokens (`engines/`).
        max_new_tokens: length limit of a completion.
        seed: the run's seed; validation batches carry a seed of their own in `stream`.
    """

    slot = "rollout"
    reads = validation_reads = ("plan", "temperature_of", "scorer")
    writes = validation_writes = (
        *("group", "sample", "temperatures", "tokens", "lengths", "completion_mask"),
        *("sampler_logprobs", "truncated", "policy_version", "completions", "correct", "rewards"),
    )

    def __init__(self, engine: RolloutEngine, max_new_tokens: int, seed: int) -> None:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens}: use at least 1")
        self.engine = engine
        self.max_new_tokens = max_new_tokens
        self.seed = seed
        self.version = 0  # finished updates; stamped on every rollout

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        batch.stream = (self.seed, *batch.stream)
        self._run(batch, pl_module)

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self._run(batch, pl_module)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        self.version += 1

    def _run(self, batch: RolloutBatch, pl_module: LightningModule) -> None:
        batch.require("plan", "temperature_of", "scorer")
        assert batch.plan is not None
        policy = pl_module.policy
        assert isinstance(policy, Policy)
        started = time.monotonic()
        self.engine.sync(policy, self.version)
        batch.report["time/sync_s"] = time.monotonic() - started
        waited = 0.0
        while (counts := batch.plan.next(batch)) is not None:
            waited += self._round(batch, self._requests(batch, list(counts)), policy.pad_id)
        if isinstance(self.engine, ManagedEngine):
            self.engine.rest()
            batch.report |= self.engine.metrics()
        batch.to(pl_module.device)
        batch.report["time/rollout_s"] = time.monotonic() - started
        batch.report["time/reward_s"] = waited  # the part that generation did not hide

    def _requests(self, batch: RolloutBatch, counts: list[int]) -> list[RolloutRequest]:
        if len(counts) != batch.n_prompts or min(counts) < 0:
            raise ValueError(
                f"the plan gave counts {counts} for {batch.n_prompts} prompts: one count >= 0 each"
            )
        assert batch.temperature_of is not None
        before = batch.group_sizes.tolist()
        places = [(row, before[row] + j) for row, count in enumerate(counts) for j in range(count)]
        taus = batch.temperature_of([row for row, _ in places], [j for _, j in places])
        return [
            RolloutRequest(
                prompt=row,
                sample=j,
                prompt_tokens=tuple(batch.prompt_tokens[row]),
                temperature=float(tau),
                seed=derive_seed(*batch.stream, batch.prompt_ids[row], j),
                max_new_tokens=self.max_new_tokens,
            )
            for (row, j), tau in zip(places, taus, strict=True)
        ]

    def _round(self, batch: RolloutBatch, requests: list[RolloutRequest], pad: int) -> float:
        """Generate and score one round; returns the seconds spent waiting for scores."""
        assert batch.scorer is not None
        arrived: list[Rollout] = []
        for rollout in self.engine.generate(requests):
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
        batch.extend([arrived[i] for i in order], [scores[i] for i in order], pad)
        return waited

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self.engine.close()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.engine.close()

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.version = int(state_dict["version"])

"""Slot `temperature`: at which temperature each rollout is sampled."""

import math
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer

from e3rl.batch import RolloutBatch
from e3rl.callbacks.slot import Slot, batches_to_decide, rollout_step, total_steps
from e3rl.process.distributed import all_sum
from e3rl.temperatures.base import Difficulty, EntropyReading, TemperatureDecision, TemperatureRule


class TemperatureScheduler(Slot):
    """Feeds one entropy over all ranks to the rule, so that all ranks hold one temperature.

    With the batch's difficulty ranks, which `budget` wrote, a rule may give prompts temperatures
    of their own; the step's own temperature is what validation calls `live`.

    Args:
        strategy: the temperature rule (`temperatures/`).
        lookahead: steps that rollouts are sampled ahead: so much earlier must be decided.
    """

    slot = "temperature"
    reads = ("ranks",)
    writes = validation_writes = ("base_temperature", "temperature_of")

    def __init__(self, strategy: TemperatureRule, lookahead: int = 0) -> None:
        self.strategy = strategy
        self.lookahead = lookahead

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.max_epochs is None or trainer.max_epochs < 0:
            raise ValueError(
                f"trainer.max_epochs={trainer.max_epochs}: a temperature schedule needs the length "
                "of the run; set a number of epochs"
            )
        self.strategy.bind(total_steps(trainer), self.lookahead)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: RolloutBatch, batch_idx: int
    ) -> None:
        for each, step in batches_to_decide(trainer, batch):
            _write(each, self.strategy.decide(step, difficulty_of(each)))

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: RolloutBatch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Offers the live temperature; `pass_at_k` decides what is made of it."""
        _write(batch, self.strategy.decide(rollout_step(trainer) + 1))

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: RolloutBatch,
        batch_idx: int,
    ) -> None:
        reading = read_entropy(batch, rollout_step(trainer))
        self.strategy.observe(reading)
        batch.metrics |= {f"temperature/{name}": x for name, x in self.strategy.metrics().items()}
        batch.metrics |= _entropies(reading, batch)

    def state_dict(self) -> dict[str, Any]:
        return self.strategy.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.strategy.load_state_dict(state_dict)


def difficulty_of(batch: RolloutBatch) -> Difficulty:
    """Ranks of this process's prompts, with the mean over the seen prompts of all processes."""
    ranks = batch.tensor("ranks").double()
    seen = ranks[~ranks.isnan()]
    total, count = all_sum([float(seen.sum()), float(seen.numel())])
    return Difficulty(tuple(ranks.tolist()), total / count if count else math.nan)


def _write(batch: RolloutBatch, decision: TemperatureDecision) -> None:
    batch.base_temperature, batch.temperature_of = decision.temperature, decision


def read_entropy(batch: RolloutBatch, step: int) -> EntropyReading:
    """The step's entropy over every rollout of every rank (algorithm: Σ −log p / Σ tokens), each
    as often as it counts: where rollouts are stopped early, those that go on stand for them."""
    counts = batch.counts()
    lengths = batch.tensor("completion_mask").sum(dim=1) * counts
    surprisal, tokens, heat = all_sum(
        [
            -float((batch.tensor("sampler_logprobs").double() * counts[:, None]).sum()),
            float(lengths.sum()),
            float((lengths * batch.tensor("temperatures").double()).sum()),
        ]
    )
    temperature = heat / tokens
    probe = batch.entropy
    if probe is None:
        return EntropyReading(step, temperature, surprisal / tokens, int(tokens))
    points = zip(probe.factors, probe.curve_sums, strict=True)
    return EntropyReading(
        step=step,
        temperature=temperature,
        sampled=surprisal / tokens,
        tokens=int(tokens),
        exact=probe.entropy_sum / probe.tokens,
        varentropy=probe.varentropy_sum / probe.tokens,
        curve=tuple(sorted((factor * temperature, x / probe.tokens) for factor, x in points)),
    )


def _entropies(reading: EntropyReading, batch: RolloutBatch) -> dict[str, float]:
    metrics = {"policy/entropy": reading.sampled, "rollout/temperature": reading.temperature}
    if (probe := batch.entropy) is not None:
        metrics |= {
            "policy/entropy_exact": probe.entropy_sum / probe.tokens,
            "policy/entropy_exact_t1": probe.entropy_t1_sum / probe.tokens,
            "policy/entropy_sampled_t1": probe.sampled_t1_sum / probe.tokens,
            "policy/varentropy": probe.varentropy_sum / probe.tokens,
        }
    return metrics

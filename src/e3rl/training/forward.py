"""Passes of the policy over a batch: some rollouts in, values of their sampled tokens out."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.entropy import token_entropy
from e3rl.functional.predictions import Measure, Predictions
from e3rl.losses.micro_batch import MicroBatch, SampledTokens
from e3rl.policy.policy import AdaptersOff, Policy
from e3rl.policy.sharding import idle_packs

T = TypeVar("T")


def forward(
    policy: Policy | AdaptersOff, batch: RolloutBatch, rows: Tensor, entropies: bool = False
) -> MicroBatch:
    """Run a policy, or its reference, on some rollouts (n,) of a batch, cut to the longest."""

    def read(predictions: Predictions, of: SampledTokens) -> tuple[Tensor, Tensor | None]:
        return predictions.scores(of.tokens, of.temperatures, entropies)

    sampled, (logprobs, found) = _run(policy, batch, rows, read)
    return MicroBatch(**vars(sampled), logprobs=logprobs, entropies=found)


@torch.no_grad()
def measure(
    policy: Policy | AdaptersOff, batch: RolloutBatch, rows: Tensor, wanted: Measure
) -> tuple[SampledTokens, Tensor]:
    """The sampled tokens of some rollouts (n,), and (M, ...) of what is measured at each."""

    def read(predictions: Predictions, of: SampledTokens) -> Tensor:
        return predictions.measure(wanted, of.tokens, of.temperatures)

    return _run(policy, batch, rows, read)


def per_token(policy: Policy, batch: RolloutBatch, packs: list[Tensor], wanted: Measure) -> Tensor:
    """(N, T) float32 of what is measured at the sampled tokens of `packs`, 0 elsewhere."""
    values = torch.zeros_like(batch.tensor("tokens"), dtype=torch.float32)
    idle = idle_packs(policy, batch, len(packs))
    for rows in packs:
        sampled, found = measure(policy, batch, rows, wanted)
        places = rows[sampled.rollout], sampled.positions.nonzero()[:, 1]
        values[places] = found.float()
    for rows in idle:
        measure(policy, batch, rows, wanted)
    return values


def entropies(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """`token_entropy` as a measure."""
    return token_entropy(logits, temperatures)


def _run(
    policy: Policy | AdaptersOff,
    batch: RolloutBatch,
    rows: Tensor,
    read: Callable[[Predictions, SampledTokens], T],
) -> tuple[SampledTokens, T]:
    """What `read` takes from the predictions of the rollouts' sampled tokens."""
    lengths = batch.tensor("lengths")[rows]
    width = int(lengths.max())
    tokens = batch.tensor("tokens")[rows, :width]
    positions = batch.tensor("completion_mask")[rows, :width]
    rollout = positions.nonzero()[:, 0]
    batch.passes.add(lengths, len(rollout))
    sampled = SampledTokens(
        tokens=tokens[positions],
        temperatures=batch.tensor("temperatures")[rows][rollout],
        advantages=batch.tensor("advantages")[rows][rollout],
        rollout=rollout,
        sampler_logprobs=batch.tensor("sampler_logprobs")[rows, :width][positions],
        positions=positions,
    )
    return sampled, policy(tokens, positions, lambda predictions: read(predictions, sampled))

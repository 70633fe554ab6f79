"""Passes of the policy over a batch: some rollouts in, values of their sampled tokens out."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.entropy import token_entropy
from e3rl.functional.packing import (
    Pack,
    RolloutLengths,
    microbatches,
    pays_to_share,
    shared_microbatches,
)
from e3rl.functional.predictions import Measure, Predictions
from e3rl.functional.shared_prompts import share_prompts
from e3rl.losses.micro_batch import MicroBatch, SampledTokens
from e3rl.policy.adapters import AdaptersOff
from e3rl.policy.policy import Policy
from e3rl.policy.sharding import idle_packs
from e3rl.training.entropy_meter import EntropyProbe

T = TypeVar("T")


def cut(policy: Policy, batch: RolloutBatch, rows: Tensor, budget: int) -> list[Pack]:
    """Micro-batches of at most `budget` tokens that cover some rollouts (m,) of a batch.

    Rollouts of a group share their prompt where the policy can do that and it makes passes shorter.
    """
    lengths = batch.tensor("lengths")
    sharing = policy.sharing
    if sharing is not None and len(rows):
        prompt = batch.tensor("completion_mask").int().argmax(dim=1)
        of = RolloutLengths(lengths, prompt, batch.tensor("group"))
        fits = sharing.longest is None or int(lengths[rows].max()) <= sharing.longest
        if fits and pays_to_share(of, rows, sharing.pairs_per_token):
            return shared_microbatches(of, rows, budget)
    return microbatches(lengths, rows, budget)


def forward(
    policy: Policy | AdaptersOff,
    batch: RolloutBatch,
    pack: Pack,
    entropies: bool = False,
    probe: EntropyProbe | None = None,
) -> MicroBatch:
    """Run a policy, or its reference, on a micro-batch, cut to the longest rollout.

    A probe is shown the predictions in passing.
    """

    def read(predictions: Predictions, of: SampledTokens) -> tuple[Tensor, Tensor | None]:
        if probe is not None:
            probe.add(pack, predictions, of)
        return predictions.scores(of.tokens, of.temperatures, entropies)

    sampled, (logprobs, found) = _run(policy, batch, pack, read)
    return MicroBatch(**vars(sampled), logprobs=logprobs, entropies=found)


@torch.no_grad()
def measure(
    policy: Policy | AdaptersOff, batch: RolloutBatch, pack: Pack, wanted: Measure
) -> tuple[SampledTokens, Tensor]:
    """The sampled tokens of a micro-batch, and (M, ...) of what is measured at each."""

    def read(predictions: Predictions, of: SampledTokens) -> Tensor:
        return predictions.measure(wanted, of.tokens, of.temperatures)

    return _run(policy, batch, pack, read)


@torch.no_grad()
def measure_entropy(
    policy: Policy, batch: RolloutBatch, rows: Tensor, budget: int, probe: EntropyProbe
) -> None:
    """Show a probe those of some rollouts (m,) that it has chosen, by passes of their own."""

    packs = cut(policy, batch, rows[probe.chosen[rows]], budget)
    idle = idle_packs(policy, batch, len(packs))
    for pack in packs:
        _run(policy, batch, pack, partial(probe.add, pack))
    for pack in idle:
        _run(policy, batch, pack, lambda predictions, sampled: None)


def per_token(policy: Policy, batch: RolloutBatch, packs: list[Pack], wanted: Measure) -> Tensor:
    """(N, T) float32 of what is measured at the sampled tokens of `packs`, 0 elsewhere."""
    values = torch.zeros_like(batch.tensor("tokens"), dtype=torch.float32)
    idle = idle_packs(policy, batch, len(packs))
    for pack in packs:
        sampled, found = measure(policy, batch, pack, wanted)
        places = pack.rows[sampled.rollout], sampled.positions.nonzero()[:, 1]
        values[places] = found.float()
    for pack in idle:
        measure(policy, batch, pack, wanted)
    return values


def entropies(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """`token_entropy` as a measure."""
    return token_entropy(logits, temperatures)


def _run(
    policy: Policy | AdaptersOff,
    batch: RolloutBatch,
    pack: Pack,
    read: Callable[[Predictions, SampledTokens], T],
) -> tuple[SampledTokens, T]:
    """What `read` takes from the predictions of the rollouts' sampled tokens."""
    rows = pack.rows
    lengths = batch.tensor("lengths")[rows]
    width = int(lengths.max())
    tokens = batch.tensor("tokens")[rows, :width]
    positions = batch.tensor("completion_mask")[rows, :width]
    rollout = positions.nonzero()[:, 0]
    sampled = SampledTokens(
        tokens=tokens[positions],
        temperatures=batch.tensor("temperatures")[rows][rollout],
        advantages=batch.tensor("advantages")[rows][rollout],
        rollout=rollout,
        sampler_logprobs=batch.tensor("sampler_logprobs")[rows, :width][positions],
        positions=positions,
    )
    group = batch.tensor("group")[rows]
    layout = share_prompts(tokens, positions, group) if pack.shared else None
    columns = torch.arange(1, width + 1, device=tokens.device).expand_as(tokens)
    attended = columns[columns <= lengths[:, None]] if layout is None else layout.position_ids + 1
    batch.passes.add(attended, len(rollout))
    found = policy(tokens, positions, lambda predictions: read(predictions, sampled), layout)
    return sampled, found

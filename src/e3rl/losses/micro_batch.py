"""`MicroBatch`: the sampled tokens of a few rollouts, flattened, and the logits scoring them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from e3rl.batch import RolloutBatch
from e3rl.functional.entropy import token_entropy
from e3rl.functional.grad_norms import logit_grad_norm_squared
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.token_temperatures import token_temperatures
from e3rl.policy import Policy
from e3rl.sharding import idle_packs


@dataclass(frozen=True)
class MicroBatch:
    """M sampled tokens of n rollouts, row by row; no padding among them."""

    logits: Tensor  # (M, V) at temperature 1
    tokens: Tensor  # (M,) int64
    temperatures: Tensor  # (M,) as sampled
    advantages: Tensor  # (M,)
    rollout: Tensor  # (M,) int64 in [0, n), the row each token belongs to
    sampler_logprobs: Tensor  # (M,)
    positions: Tensor  # (n, t) bool, where the tokens stand in their rows

    def logprobs(self) -> Tensor:
        """(M,) log-probs of the tokens at their own temperatures, with gradient."""
        return token_logprobs(self.logits, self.tokens, self.temperatures)

    def entropies(self) -> Tensor:
        """(M,) entropies at the tokens' own temperatures, nats, with gradient."""
        return token_entropy(self.logits, self.temperatures)

    def grad_norms_squared(self) -> Tensor:
        """(M,) squared norms of the gradients of `logprobs` with respect to the logits."""
        return logit_grad_norm_squared(self.logits, self.tokens, self.temperatures)


def forward(policy: Policy, batch: RolloutBatch, rows: Tensor) -> MicroBatch:
    """Run the policy on some rollouts (n,) of a batch, cut to the longest of them."""
    lengths = batch.tensor("lengths")[rows]
    width = int(lengths.max())
    tokens = batch.tensor("tokens")[rows, :width]
    positions = batch.tensor("completion_mask")[rows, :width]
    rollout = positions.nonzero()[:, 0]
    taus = token_temperatures(batch.tensor("temperatures")[rows], batch.token_factors, positions)
    return MicroBatch(
        logits=policy(tokens, positions),
        tokens=tokens[positions],
        temperatures=taus[positions],
        advantages=batch.tensor("advantages")[rows][rollout],
        rollout=rollout,
        sampler_logprobs=batch.tensor("sampler_logprobs")[rows, :width][positions],
        positions=positions,
    )


@torch.no_grad()
def per_token(
    policy: Policy,
    batch: RolloutBatch,
    packs: list[Tensor],
    measure: Callable[[MicroBatch], Tensor],
) -> Tensor:
    """(N, T) float32 of what `measure` finds at the sampled tokens of `packs`, 0 elsewhere."""
    values = torch.zeros_like(batch.tensor("tokens"), dtype=torch.float32)
    idle = idle_packs(policy, batch, len(packs))
    for rows in packs:
        micro = forward(policy, batch, rows)
        places = rows[micro.rollout], micro.positions.nonzero()[:, 1]
        values[places] = measure(micro).float()
    for rows in idle:
        forward(policy, batch, rows)
    return values

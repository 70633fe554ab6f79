"""Exact entropy of the sampling policy on a uniform sample of a step's rollouts."""

from dataclasses import dataclass

import torch
from torch import Tensor

from e3rl.batch import MeasuredEntropy, RolloutBatch
from e3rl.distributed import all_sum
from e3rl.functional.entropy import (
    sampled_entropy_t1,
    token_entropy,
    token_varentropy,
)
from e3rl.functional.logprobs import token_logprobs
from e3rl.functional.packing import microbatches
from e3rl.policy.policy import Policy
from e3rl.policy.sharding import idle_packs
from e3rl.seeds import derive_seed
from e3rl.training.forward import measure


@dataclass(frozen=True)
class EntropyMeter:
    """How much to measure, without gradient, before each update.

    Args:
        rows: rollouts forwarded, a uniform sample of the step's on all ranks together (rounded
            up on each); 0 switches the probe off.
        factors: multipliers of the sampling temperature at which the entropy is measured too
            (what the gain rule `solve` needs).
    """

    rows: int = 64
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"probe.rows={self.rows}: use 0 (off) or a number of rollouts")
        if any(factor <= 0 for factor in self.factors):
            raise ValueError(f"probe.factors={self.factors}: temperature multipliers must be > 0")

    def choose(self, batch: RolloutBatch) -> Tensor:
        """(m,) uniform rows of this rank, drawn from the batch's seed stream."""
        n = batch.n_rollouts
        everywhere = int(all_sum([n])[0])
        if self.rows >= everywhere:
            return torch.arange(n)
        share = -(-self.rows * n // everywhere)  # budgets give ranks unequal numbers of rollouts
        generator = torch.Generator().manual_seed(derive_seed(*batch.stream, "probe"))
        return torch.randperm(n, generator=generator)[:share].sort().values

    @torch.no_grad()
    def measure(
        self, policy: Policy, batch: RolloutBatch, tokens_per_microbatch: int
    ) -> MeasuredEntropy:
        """Sums over the sampled tokens of the chosen rollouts, on all ranks.

        The rollouts that an update does not skip would not do: their entropy is another one.
        """
        lengths = batch.tensor("lengths")
        rows = self.choose(batch).to(lengths.device)
        sums = torch.zeros(5 + len(self.factors), dtype=torch.float64)
        packs = microbatches(lengths, rows, tokens_per_microbatch)
        idle = idle_packs(policy, batch, len(packs))
        for pack in packs:
            _, found = measure(policy, batch, pack, self._columns)
            sums += found.sum(dim=0, dtype=torch.float64).cpu()
        for pack in idle:
            measure(policy, batch, pack, self._columns)
        totals = all_sum(sums.tolist())
        return MeasuredEntropy(
            tokens=int(totals[0]),
            entropy_sum=totals[1],
            entropy_t1_sum=totals[2],
            varentropy_sum=totals[3],
            sampled_t1_sum=totals[4],
            factors=tuple(self.factors),
            curve_sums=tuple(totals[5:]),
        )

    def _columns(self, logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
        """(m, 5 + K) metrics of each token, the last K along the curve."""
        ones = torch.ones_like(temperatures)
        at_one = token_logprobs(logits, tokens, ones)
        metrics = [
            ones,
            token_entropy(logits, temperatures),
            token_entropy(logits, ones),
            token_varentropy(logits, temperatures),
            sampled_entropy_t1(token_logprobs(logits, tokens, temperatures), at_one),
            *(token_entropy(logits, temperatures * factor) for factor in self.factors),
        ]
        return torch.stack(metrics, dim=1)

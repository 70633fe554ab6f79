"""Exact entropy of the sampling policy on a uniform sample of a step's rollouts.

Rollouts that the update forwards anyway are measured in passing, before the first step; only those
that it skips take a pass of their own. These cost more, so fewer of them are drawn and each counts
for more, as strata of unequal cost are sampled (Cochran, Sampling Techniques, section 5.5).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from e3rl.batch import MeasuredEntropy, RolloutBatch
from e3rl.functional.entropy import measure_tokens, sampled_entropy_t1, token_entropy
from e3rl.functional.packing import Pack
from e3rl.functional.predictions import Predictions
from e3rl.losses.micro_batch import SampledTokens
from e3rl.process.distributed import all_sum
from e3rl.seeds import derive_seed

APART = 2 / 3  # of the drawn rollouts that the update skips
SUMS = 5  # tokens, entropy, the same at temperature 1, varentropy, sampled entropy at temperature 1


@dataclass(frozen=True)
class EntropyMeter:
    """How much to measure, without gradient, before each update.

    Args:
        rows: rollouts drawn, a uniform sample of the step's on all ranks together (rounded up
            on each); 0 switches the probe off. Of those that the update skips two in three are
            measured and weighed by 3/2, unless all of a rank's are drawn.
        share: at most this part of the step's rollouts, so that the probe stays cheap beside the
            update whatever their number.
        factors: multipliers of the sampling temperature at which the entropy is measured too
            (what the gain rule `solve` needs).
    """

    rows: int = 64
    share: float = 0.25
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.rows < 0:
            raise ValueError(f"probe.rows={self.rows}: use 0 (off) or a number of rollouts")
        if not 0 < self.share <= 1:
            raise ValueError(f"probe.share={self.share}: use a part in (0, 1] of the rollouts")
        known = all(0 < factor < math.inf for factor in self.factors)
        if not known or len(set(self.factors)) < len(self.factors):
            raise ValueError(
                f"module.probe.factors={self.factors}: temperature multipliers must be > 0 and "
                "finite, each of them named once"
            )

    def choose(self, batch: RolloutBatch) -> Tensor:
        """(m,) uniform rows of this rank in random order, drawn from the batch's seed stream; all
        of them in their own order where the settings ask for no fewer."""
        n = batch.n_rollouts
        everywhere = int(all_sum([n])[0])
        wanted = min(self.rows, self.share * everywhere)
        if wanted >= everywhere:
            return torch.arange(n)
        own = math.ceil(wanted * n / everywhere)  # budgets give ranks unequal numbers of rollouts
        generator = torch.Generator().manual_seed(derive_seed(*batch.stream, "probe"))
        return torch.randperm(n, generator=generator)[:own]

    def begin(self, batch: RolloutBatch, forwarded: Tensor) -> "EntropyProbe":
        """A measurement of rollouts of the batch, (N,) bool of which the update forwards."""
        rows = self.choose(batch).to(forwarded.device)
        weights = torch.zeros_like(forwarded, dtype=torch.float64)
        weights[rows] = 1
        apart = rows[~forwarded[rows]]
        if len(apart) and len(rows) < batch.n_rollouts:
            kept = math.ceil(APART * len(apart))
            weights[apart] = 0
            weights[apart[:kept]] = len(apart) / kept
        return EntropyProbe(weights, batch.counts(), tuple(self.factors))


class EntropyProbe:
    """One batch's measurement, to be shown every chosen rollout once.

    The rollouts that an update does not skip would not do: their entropy is another one.

    Args:
        weights: (N,) float64, for how many each rollout was drawn, 0 for those that are not chosen.
        counts: (N,) float64, how often each counts (`RolloutBatch.counts`).
        factors: see `EntropyMeter`.
    """

    def __init__(self, weights: Tensor, counts: Tensor, factors: tuple[float, ...]) -> None:
        self.weights = weights
        self.chosen = weights > 0
        self._factors = factors
        # As they count, and alike, in case none of those that were chosen does.
        self._weights = torch.stack([weights * counts, weights])
        self._sums = torch.zeros(2, SUMS + len(factors), dtype=torch.float64)

    @torch.no_grad()
    def add(self, pack: Pack, predictions: Predictions, sampled: SampledTokens) -> None:
        """Count the chosen rollouts of a micro-batch."""
        tokens = self.chosen[pack.rows][sampled.rollout].nonzero()[:, 0]
        if len(tokens):
            of, taus = sampled.tokens[tokens], sampled.temperatures[tokens]
            found = predictions.at(tokens).measure(self._columns, of, taus)
            weights = self._weights[:, pack.rows][:, sampled.rollout[tokens]]
            self._sums += (weights @ found.double()).cpu()

    def result(self) -> MeasuredEntropy:
        """Weighted sums over the sampled tokens of the chosen rollouts, on all ranks."""
        counted, alike = self._sums
        totals = all_sum((counted if counted[0] > 0 else alike).tolist())
        return MeasuredEntropy(
            tokens=totals[0],
            entropy_sum=totals[1],
            entropy_t1_sum=totals[2],
            varentropy_sum=totals[3],
            sampled_t1_sum=totals[4],
            factors=self._factors,
            curve_sums=tuple(totals[SUMS:]),
        )

    def _columns(self, logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
        """(m, 5 + K) metrics of each token, the last K along the curve."""
        ones = torch.ones_like(temperatures)
        logprobs, entropy, varentropy = measure_tokens(logits, tokens, temperatures)
        logprobs_t1, entropy_t1 = logprobs, entropy
        if bool((temperatures != 1).any()):
            logprobs_t1, entropy_t1, _ = measure_tokens(logits, tokens, ones)
        metrics = [
            ones,
            entropy,
            entropy_t1,
            varentropy,
            sampled_entropy_t1(logprobs, logprobs_t1),
            *(token_entropy(logits, temperatures * factor) for factor in self._factors),
        ]
        return torch.stack(metrics, dim=1)

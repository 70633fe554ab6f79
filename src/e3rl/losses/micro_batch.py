"""`MicroBatch`: the sampled tokens of a few rollouts, flattened, as the policy scores them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SampledTokens:
    """M sampled tokens of n rollouts, row by row; no padding among them."""

    tokens: Tensor  # (M,) int64
    temperatures: Tensor  # (M,) as sampled
    advantages: Tensor  # (M,)
    rollout: Tensor  # (M,) int64 in [0, n), the row each token belongs to
    sampler_logprobs: Tensor  # (M,)
    positions: Tensor  # (n, t) bool, where the tokens stand in their rows


@dataclass(frozen=True)
class MicroBatch(SampledTokens):
    """Sampled tokens and what the policy gives them, with gradient."""

    logprobs: Tensor  # (M,) at the tokens' own temperatures
    entropies: Tensor | None = None  # (M,) at the same, nats; where they were asked for

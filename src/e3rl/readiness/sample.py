"""`Sample`: what a few rollouts of the untrained policy showed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Mismatch:
    """How far the sampler's log-probs are from the trainer's, over the tokens that were compared.

    kl: mean k3 estimate of KL(sampler‖trainer), nats per token; largest: gap of log-probs, nats;
    ess: effective share of the tokens under weights π_trainer/π_sampler, 1 where they agree.
    """

    tokens: int
    kl: float
    largest: float
    ess: float


@dataclass(frozen=True)
class Sample:
    """Rollouts of P prompts at one temperature, N in all, by processes with a device each."""

    prompt_ids: list[str]
    right: Counts  # (P,)
    rollouts: Counts  # (P,)
    lengths: Counts  # (N,) tokens of a completion
    truncated: NDArray[np.bool_]  # (N,)
    answered: NDArray[np.bool_]  # (N,) has an answer in the required format
    statuses: Mapping[str, int]  # verdicts by status; they add up to N
    temperature: float
    entropy: float  # nats per token, by the surprise of the sampled ones
    generation_s: float  # the engine's start and weights, and waiting for rewards, left out
    reward_s: float  # waiting for verdicts after the last rollout
    update_s: float  # per completion token on one device, as three of the forward passes measured
    mismatch: Mismatch
    processes: int = 1  # that sampled at once

    @property
    def tokens_per_s(self) -> float:
        """Completion tokens per second of sampling, of all processes together."""
        return float(self.lengths.sum()) / self.generation_s

    @property
    def trained_tokens_per_s(self) -> float:
        """Completion tokens per second of sampling and updating, one after the other."""
        return 1 / (1 / self.tokens_per_s + self.update_s / self.processes)

    @property
    def has_signal(self) -> bool:
        """Whether some rollouts were right and some wrong."""
        return bool(0 < self.right.sum() < self.rollouts.sum())

    def share(self, *statuses: str) -> float:
        """Of the verdicts those with one of these statuses."""
        return sum(self.statuses.get(status, 0) for status in statuses) / len(self.lengths)

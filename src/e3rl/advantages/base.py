"""What every advantage estimator offers."""

from typing import Protocol

from torch import Tensor


class AdvantageEstimator(Protocol):
    """Turns the rewards of ragged groups into one advantage per rollout.

    Contract: exactly 0 for groups whose rewards are all equal and for groups of one; permuting
    the rollouts permutes the advantages.
    """

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 in [0, n_groups) -> (N,) float32."""

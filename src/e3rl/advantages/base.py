"""What every advantage estimator offers."""

from typing import Protocol, runtime_checkable

from torch import Tensor


class AdvantageEstimator(Protocol):
    """Turns the rewards of ragged groups into one advantage per rollout.

    Contract: permuting the rollouts permutes the advantages; where all rewards of the batch are
    equal they are exactly 0. Group-relative estimators give exactly 0 for every group whose
    rewards are all equal and for groups of one; only `reinforce_pp` with the whole batch as its
    baseline does not. Ranks call it the same number of times, for it may sum over them.
    """

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 in [0, n_groups) -> (N,) float32."""


@runtime_checkable
class Scheduled(Protocol):
    """An estimator that changes over the run; a function of the step, so it has no state."""

    def begin(self, step: int, total_steps: int) -> None:
        """Called before each batch with its 0-based rollout step and the run's number of them."""

    def metrics(self) -> dict[str, float]:
        """What it uses for this step, by name."""

"""Centred advantages of Dr.GRPO."""

from torch import Tensor

from e3rl.advantages.groups import centred_rewards


class Centred:
    """A = r - mean within the group, no division (Dr.GRPO, arXiv 2503.20783).

    The own reward is part of the mean, which shrinks the expected gradient by (n-1)/n: with
    unequal group sizes that is a weight by size, which `LeaveOneOut` does not have.
    """

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32."""
        return centred_rewards(rewards, group, n_groups).float()

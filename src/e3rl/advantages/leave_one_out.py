"""Leave-one-out advantages of RLOO."""

from torch import Tensor

from e3rl.advantages.groups import centred_rewards
from e3rl.functional.ragged import group_counts


class LeaveOneOut:
    """A = r - mean of the *other* rewards of the group = n/(n-1) · (r - mean).

    (RLOO, arXiv 2402.14740.) The baseline does not see the own reward, so the gradient estimate
    is unbiased for every group size; preferred where budgets give prompts unequal sizes.
    """

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32."""
        counts = group_counts(group, n_groups)
        factor = counts / (counts - 1).clamp(min=1)
        return (centred_rewards(rewards, group, n_groups) * factor[group]).float()

"""Advantages of maximum-likelihood reinforcement learning (MaxRL)."""

from torch import Tensor

from e3rl.advantages.groups import centred_rewards
from e3rl.functional.ragged import group_means


class MaximumLikelihood:
    """A = (r - mean) / mean within the group (MaxRL, arXiv 2602.02710); 0 where nothing is right.

    With 0/1 rewards at success rate p a right rollout gets (1-p)/p and a wrong one -1, which for
    rare successes is 1/√p times what `GroupNormalized` gives. Over groups of n the expected
    gradient is that of Σ pass@k / k over k < n, the first terms of log p; `Centred` has pass@1.
    """

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32.

        Raises ValueError for rewards below 0, whose mean says nothing of a likelihood.
        """
        centred = centred_rewards(rewards, group, n_groups)
        if rewards.numel() and float(rewards.min()) < 0:
            raise ValueError(
                f"advantage=maximum_likelihood divides by the mean reward of a group, and a reward "
                f"is {float(rewards.min()):g}: use rewards of 0 and more, or another advantage "
                "(advantage=centred); shaping=overlong makes negative ones"
            )
        mean = group_means(rewards.double(), group, n_groups)[group]
        return (centred / mean).masked_fill(centred == 0, 0.0).float()

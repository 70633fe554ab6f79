"""Group-normalised advantages of GRPO."""

import math

from torch import Tensor

from e3rl.advantages.groups import centred_rewards
from e3rl.functional.ragged import group_counts


class GroupNormalized:
    """A = (r - mean) / (std + ε) within the group (GRPO, arXiv 2402.03300 section 4.1.2).

    `ddof` is what the standard deviation divides by, n - ddof: 1 is what the common trainers
    compute, 0 is how the paper reads. With 0/1 rewards at success rate p a right rollout gets
    √((1-p)/p), so rare successes (and rare failures) weigh more than under `Centred`.
    """

    def __init__(self, ddof: int = 1, eps: float = 1e-6) -> None:
        if ddof not in (0, 1):
            raise ValueError(f"ddof={ddof} must be 1 (sample) or 0 (population)")
        if not 0 <= eps < math.inf:
            raise ValueError(f"eps={eps} must be a number from 0 on; the published value is 1e-6")
        self.ddof = ddof
        self.eps = eps

    def __call__(self, rewards: Tensor, group: Tensor, n_groups: int) -> Tensor:
        """Rewards (N,) float32, prompt rows (N,) int64 -> advantages (N,) float32."""
        centred = centred_rewards(rewards, group, n_groups)
        squares = centred.new_zeros(n_groups).index_add(0, group, centred.square())
        # A group of one has no spread and A = 0; the floor keeps 0/0 out of it.
        divisor = (group_counts(group, n_groups) - self.ddof).clamp(min=1)
        spread = (squares / divisor).sqrt()[group]
        return (centred / (spread + self.eps)).masked_fill(centred == 0, 0.0).float()

"""Rewards that depend on the length of the completion.

`LengthShaping`: right answers to easy prompts earn less the longer they are.
`OverlongPenalty`: whatever comes near the length limit loses reward.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

BELOW_ONE = math.nextafter(1.0, 0.0)


class LengthShaping:
    """r ← r · (1 - b) with b = μℓ / (1 + μℓ) for r > 0 and prompts of rank ≤ `rank_threshold`.

    Prompts that were solved in all of their rollouts come with rank 0, however many they are
    (`RolloutBatch.ranks_for_shaping`): the rank that they share as the mean of their places grows
    with their number, and would leave none of them easy beyond a fifth of all prompts.

    ℓ is the completion's length in tokens; with rewards of 0 and 1 a right answer earns 1 - b and
    a wrong one keeps 0. Rewards of 0 and less stay as they are: a share of a loss would pay for
    length. The penalty of the E3 reference code, with three differences:

    * it applies to every rewarded rollout of an easy prompt, before advantages are taken. There, a
      guard that all rewards of the group exceed 1 made it dead for rewards of 0 and 1;
    * b is kept below 1, so that a right answer always earns more than a wrong one;
    * a prompt of unknown rank (NaN, as before the first visit) is not shaped.

    The penalty is strong: at μ = 10⁻³ it is 0.33 for 500 tokens and 0.78 for 3,500. A threshold of
    0 still shapes prompts of rank exactly 0; to have no shaping, configure none.

    Args:
        mu: strength per token, finite and at least 0.
        rank_threshold: difficulty rank in [0, 1], 0 = easiest, up to which prompts are easy.
    """

    def __init__(self, mu: float = 1e-3, rank_threshold: float = 0.1) -> None:
        if not (math.isfinite(mu) and mu >= 0):
            raise ValueError(f"mu={mu}; the penalty per token must be finite and at least 0")
        if not 0 <= rank_threshold <= 1:
            raise ValueError(f"rank_threshold={rank_threshold}; ranks lie in [0, 1]")
        self.mu = mu
        self.rank_threshold = rank_threshold

    def __call__(
        self, rewards: ArrayLike, lengths: ArrayLike, ranks: ArrayLike
    ) -> NDArray[np.float64]:
        """Shaped rewards (N,), from rewards (N,), lengths (N,) in tokens and ranks (N,).

        Raises ValueError where the shapes differ or a length is negative.
        """
        reward, length, rank = _checked(rewards, lengths, ranks)
        penalty = np.minimum(self.mu * length / (1 + self.mu * length), BELOW_ONE)
        # NaN compares false: an unseen prompt keeps its reward.
        shaped = (rank <= self.rank_threshold) & (reward > 0)
        return np.where(shaped, reward * (1 - penalty), reward)


class OverlongPenalty:
    """r ← r + p, with p falling from 0 to -1 over the last part of the allowed length.

        p = 0 for ℓ ≤ L - c,   (L - c - ℓ)/c up to L,   -1 beyond

    (DAPO's soft overlong punishment, arXiv 2503.14476 eq. 13, where L = 20,480 and c = 4,096.)
    Wrong answers lose as much as right ones, so a group that is all wrong gets advantages by
    length alone: a verified reward is no longer the only thing that teaches.

    Args:
        limit: L ≥ 1, tokens after which a completion is cut.
        share: c / L in (0, 1], the part of the limit in which the penalty grows.
    """

    def __init__(self, limit: int, share: float = 0.2) -> None:
        if limit < 1:
            raise ValueError(f"limit={limit}; completions have at least one token")
        if not 0 < share <= 1:
            raise ValueError(f"share={share} must lie in (0, 1]; the published value is 0.2")
        self.limit = limit
        self.share = share

    def __call__(
        self, rewards: ArrayLike, lengths: ArrayLike, ranks: ArrayLike
    ) -> NDArray[np.float64]:
        """Shaped rewards (N,), from rewards (N,) and lengths (N,) in tokens; ranks do not matter.

        Raises ValueError where the shapes differ or a length is negative.
        """
        reward, length, _ = _checked(rewards, lengths, ranks)
        buffer = self.share * self.limit
        return reward + np.clip((self.limit - buffer - length) / buffer, -1.0, 0.0)


def _checked(*columns: ArrayLike) -> list[NDArray[np.float64]]:
    """Rewards, lengths and ranks as float64, their shapes compared."""
    reward, length, rank = (np.asarray(x, dtype=np.float64) for x in columns)
    if not reward.shape == length.shape == rank.shape:
        raise ValueError(
            f"rewards {reward.shape}, lengths {length.shape} and ranks {rank.shape} must "
            "have one entry per rollout"
        )
    if (length < 0).any():
        raise ValueError(f"lengths must not be negative, got {length.min():g}")
    return [reward, length, rank]

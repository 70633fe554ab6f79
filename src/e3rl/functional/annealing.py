"""Cosine annealing of a target."""

import math


def cosine_factor(step: int, start: int, total: int, eta: float) -> float:
    """Factor that falls from 1 at `start` to `eta` at `total` along half a cosine.

        f(t) = η + (1-η)·½·(1 + cos(π·(t - start)/(total - start)))

    (arXiv 2505.18573 eq. 5.) 1 before `start`, `eta` from `total` on: the cosine never rises
    again.

    Args:
        step: t, in rollout steps.
        start: first step of the annealing.
        total: step at which the annealing ends.
        eta: final factor in (0, 1].

    Raises:
        ValueError: `total` not after `start` (an unknown horizon), or eta out of range.
    """
    if total <= start:
        raise ValueError(
            f"annealing from step {start} to step {total} has no length; the total must be the "
            "run's number of rollout steps and lie after the start"
        )
    if not 0 < eta <= 1:
        raise ValueError(f"eta={eta} must lie in (0, 1]; the published value is 0.9")
    progress = min(max((step - start) / (total - start), 0.0), 1.0)
    return eta + (1 - eta) * 0.5 * (1 + math.cos(math.pi * progress))

"""Annealing of a target over the last part of a run."""

import math


class CosineAnnealing:
    """Factor on the target: 1, then half a cosine down to η at the end of the run.

    It starts at step ⌊(1 - ratio)·total⌋ (arXiv 2505.18573 eq. 5).

    Args:
        eta: final factor η in (0, 1]; the paper found 0.8 and 0.85 unstable.
        ratio: part of the run that anneals, in (0, 1].
    """

    def __init__(self, eta: float = 0.9, ratio: float = 0.4) -> None:
        if not 0 < eta <= 1:
            raise ValueError(f"eta={eta} must lie in (0, 1]; the published value is 0.9")
        if not 0 < ratio <= 1:
            raise ValueError(f"ratio={ratio} must lie in (0, 1]; the published value is 0.4")
        self.eta = eta
        self.ratio = ratio
        self._total: int | None = None

    def bind(self, total_steps: int) -> None:
        """Set the length of the run in rollout steps. Not state: a resumed run may be longer."""
        if total_steps < 1:
            raise ValueError(f"total_steps={total_steps}: annealing needs the length of the run")
        self._total = total_steps

    @property
    def start(self) -> int:
        """First step of the annealing. Raises RuntimeError before `bind`."""
        return annealing_start(self.ratio, self._require_length())

    def factor(self, step: int) -> float:
        """Factor at a rollout step (0-based). Raises RuntimeError before `bind`."""
        return cosine_factor(step, self.start, self._require_length(), self.eta)

    def _require_length(self) -> int:
        if self._total is None:
            raise RuntimeError(
                "annealing needs the length of the run: call bind(total_steps) before the first "
                "step"
            )
        return self._total


def annealing_start(ratio: float, total: int) -> int:
    """⌊(1 - ratio)·total⌋, the step at which the last part of a run begins to anneal: with the
    smallest ratio the last one."""
    start = math.floor((1 - ratio) * total + 1e-9)  # (1 - 0.9)·10 is 0.999... in floating point
    return min(start, total - 1)


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

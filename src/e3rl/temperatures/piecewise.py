"""Temperatures by stages of the run, given beforehand."""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from e3rl.checkpoints.strict_state import require_keys
from e3rl.temperatures.base import Constant, Difficulty, EntropyReading


class Piecewise:
    """τ_t = τ⁽ˢ⁾ for the last stage s that has begun by rollout step t.

    POLARIS (hkunlp/Polaris) raises τ between stages such that the diversity of rollouts is that of
    the first stage again: 1.4, 1.45, 1.5 for a model of 4B parameters. Entropy is not looked at
    here; `EntropyTarget` finds such temperatures by itself.

    Args:
        temperatures: τ of each stage, each above 0.
        starts: where each stage begins, rising from 0: in parts of the run (below 1), whose first
            step is ⌈start·total⌉, or in rollout steps.
        unit: what `starts` counts.
    """

    def __init__(
        self,
        temperatures: Sequence[float],
        starts: Sequence[float],
        unit: Literal["run", "step"] = "run",
    ) -> None:
        _check(temperatures, starts, unit)
        self.temperatures = list(temperatures)
        self.starts = list(starts)
        self.unit = unit
        self._total: int | None = None
        self._lookahead = 0
        self._next = 0  # the step that follows the last one observed

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        """Tell the length of the run in rollout steps. Not state: a resumed run may be longer."""
        self._total = total_steps
        self._lookahead = lookahead

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Constant:
        """Temperature of a step.

        Raises RuntimeError for a step after the first where stages are parts of a run whose length
        is unknown.
        """
        return Constant(self.temperatures[self._stage(step)])

    def observe(self, reading: EntropyReading) -> None:
        """Follow the run; the entropy changes nothing here."""
        self._next = reading.step + 1

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys("Piecewise", state, ("next",))
        self._next = state["next"]

    def metrics(self) -> dict[str, float]:
        """The last decision: the step ahead's temperature (`value`) and its `stage`, from 0."""
        stage = self._stage(self._next + self._lookahead)
        return {"value": self.temperatures[stage], "stage": float(stage)}

    def _stage(self, step: int) -> int:
        if step == 0:  # validated before the length of the run is known
            return 0
        return bisect.bisect_right(self._first_steps(), step) - 1

    def _first_steps(self) -> list[float]:
        if self.unit == "step":
            return self.starts
        if self._total is None:
            raise RuntimeError(
                "stages in parts of the run need its length: call bind(total_steps) before the "
                "first step"
            )
        # 0.07·100 is 7.000000000000001 in floating point.
        return [math.ceil(start * self._total - 1e-9) for start in self.starts]


def _check(temperatures: Sequence[float], starts: Sequence[float], unit: str) -> None:
    if not temperatures or not all(0 < each < math.inf for each in temperatures):
        raise ValueError(f"temperatures={list(temperatures)}: give one or more, each above 0")
    if len(starts) != len(temperatures):
        raise ValueError(
            f"{len(temperatures)} temperatures and {len(starts)} starts: give each stage both"
        )
    rising = all(a < b for a, b in itertools.pairwise(starts))
    if starts[0] != 0 or not rising:
        raise ValueError(f"starts={list(starts)} must rise from 0, where the first stage begins")
    if unit not in ("run", "step"):
        raise ValueError(f"unit={unit!r}: use run (parts of it) or step (rollout steps)")
    if unit == "step" and any(start % 1 for start in starts):
        raise ValueError(
            f"starts={list(starts)} are rollout steps, whole numbers; for parts of the run set "
            "unit=run"
        )
    if unit == "run" and starts[-1] >= 1:
        raise ValueError(
            f"starts={list(starts)} are parts of the run, which ends at 1; for rollout steps set "
            "unit=step"
        )

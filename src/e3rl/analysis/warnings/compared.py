"""`Compared`: what warnings are about."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.analysis.warnings.sweeps import Sweep, sweeps_around


@dataclass(frozen=True)
class Compared:
    """Runs by arm, the arm that the others are compared with, and rows of `compare_arms`."""

    arms: Arms
    control: str | None
    rows: Sequence[Row]

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.arms.values() for run in runs]

    @property
    def others(self) -> dict[str, Sequence[Run]]:
        """Arms that are compared with the control; none without one."""
        if self.control is None:
            return {}
        return {arm: runs for arm, runs in self.arms.items() if arm != self.control}

    @cached_property
    def sweeps(self) -> list[Sweep]:
        """Sweeps with runs that were validated on problems of these runs: their own, and beside."""
        return sweeps_around(self.runs)

"""How much of a run's ledgers is kept in a light copy, and how a row is shortened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from e3rl.analysis.sources.runs import Run

DIGITS = 6
CLOCK_DIGITS = 4  # of seconds, of memory, and of work that is reckoned from sizes
CLOCKS = ("time/", "resources/", "cost/seconds", "update/flops")
LEDGERS = ("metrics", "validation", "prompts")
# Clocks tell of the machine, which runs of a sweep share, and mismatches of engines' rounding.
LEFT_OUT = ("phase/", "speed/", "time/", "policy/mismatch_")
ROW = ("kind", "rollout_step", "epoch")  # what a row of metrics is of
KEPT = ("time/step_s", "time/rollout_s", "time/update_s")


@dataclass(frozen=True)
class Extent:
    """How much of the ledgers of a run is copied.

    Args:
        prompts: what each prompt got too, where that differs between prompts, or of seed 1.
        last: the last step and the last validation alone, and nothing of prompts.
        metrics: patterns, as of a shell, of the metrics of training that are kept; empty: all.
            Which step a row is of, and what was validated, always is.
    """

    prompts: bool = True
    last: bool = False
    metrics: tuple[str, ...] = ()

    def ledgers_of(self, run: Run) -> Sequence[str]:
        """Names of the ledgers of a run that are kept."""
        if run.prompts.empty or self.last or not self.prompts:
            return LEDGERS[:2]
        return LEDGERS if run.seed == 1 or run.prompts["n"].nunique() > 1 else LEDGERS[:2]

    def rows_of(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """What is kept of the rows of a ledger."""
        short = [self._wanted(shorten_row(row)) for row in rows]
        return last_rows(short) if self.last else short

    def _wanted(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.metrics or row.get("kind") != "train":
            return row
        return {
            key: value
            for key, value in row.items()
            if key in ROW or any(fnmatchcase(key, each) for each in self.metrics)
        }


WHOLE = Extent()


def check_metrics(runs: Sequence[Run], extent: Extent) -> None:
    """Raise ValueError, naming it, for a pattern that no metric of any run fits."""
    known = {column for run in runs for column in run.train.columns}
    for pattern in extent.metrics:
        if runs and not any(fnmatchcase(column, pattern) for column in known):
            near = get_close_matches(pattern, known, n=3, cutoff=0.5)
            hint = f"; near it: {', '.join(near)}" if near else ""
            raise ValueError(f"no metric of training fits {pattern!r}{hint}")


def last_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of the last step of every kind that they have."""
    ends: dict[Any, int] = {}
    for row in rows:
        ends[row.get("kind")] = max(row["rollout_step"], ends.get(row.get("kind"), 0))
    return [row for row in rows if row["rollout_step"] == ends[row.get("kind")]]


def shorten_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as it is recorded: numbers to `DIGITS` digits, clocks to `CLOCK_DIGITS`, without what
    is `LEFT_OUT`."""
    kept = {k: v for k, v in row.items() if not k.startswith(LEFT_OUT) or k in KEPT}
    return {
        key: round_numbers(value, CLOCK_DIGITS if key.startswith(CLOCKS) else DIGITS)
        for key, value in kept.items()
    }


def round_numbers(value: Any, digits: int = DIGITS) -> Any:
    """Floats to so many significant digits, in any nesting."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, list):
        return [round_numbers(item, digits) for item in value]
    if isinstance(value, dict):
        return {key: round_numbers(item, digits) for key, item in value.items()}
    return value

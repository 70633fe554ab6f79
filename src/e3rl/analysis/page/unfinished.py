"""Runs that are not finished: which of them can be compared, and what is said of the others."""

from collections.abc import Sequence

import numpy as np

from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.costs import known_cost, total_cost
from e3rl.analysis.sources.runs import Run

SHORT = 0.8  # a run that spent less than this share of the longest is mentioned


def begun_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs that have trained a step. Raises ValueError where none has."""
    found = [run for run in runs if not run.train.empty]
    if not found:
        raise ValueError(f"none of {len(runs)} runs has finished a training step yet")
    return found


def without_untrained(runs: Sequence[Run], axis: str) -> list[Run]:
    """The runs that were validated since their training began, or all where none was."""
    return [run for run in runs if known_cost(run, axis) != 0] or list(runs)


def remarks(runs: Sequence[Run], axis: str) -> list[str]:
    """Runs that were left out, and one so short that it cuts the comparison of all others.

    Raises ValueError as `begun_runs`.
    """
    notes = [f"left out, no training step yet: {run.path}" for run in runs if run.train.empty]
    begun = begun_runs(runs)
    spent = {run.path: known_cost(run, axis) for run in without_untrained(begun, axis)}
    early = [run.path for run in begun if run.path not in spent]
    notes += [f"not compared, not validated since its training began: {path}" for path in early]
    shortest = min(spent, key=lambda path: spent[path])
    if spent[shortest] < SHORT * max(spent.values()):
        notes.append(
            f"all arms are compared at {spent[shortest]:,.0f} {AXIS_UNITS[axis]}, where "
            f"{shortest} was last validated; leave it out to compare them later"
        )
    return notes


def default_axis(runs: Sequence[Run]) -> str:
    """Tokens, or steps where some run did not record what it spent."""
    spent = [total_cost(run.train, "tokens") for run in runs]
    return "tokens" if np.isfinite(spent).all() else "steps"

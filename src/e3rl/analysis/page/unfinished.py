"""Runs that are not finished: which of them can be compared, and what is said of the others."""

from collections.abc import Sequence

import numpy as np

from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.costs import known_cost, total_cost
from e3rl.analysis.measures.curves import SHORT, without_short
from e3rl.analysis.measures.evaluations import split_by_end
from e3rl.analysis.sources.runs import Arms, Run, group_by_arm


def begun_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs that have trained a step. Raises ValueError where none has."""
    found = [run for run in runs if not run.train.empty]
    if not found:
        raise ValueError(f"none of {len(runs)} runs has finished a training step yet")
    return found


def without_untrained(runs: Sequence[Run], axis: str) -> list[Run]:
    """The runs with counts of a validation since their training began, or all where none has."""
    return [run for run in runs if known_cost(run, axis) != 0] or list(runs)


def remarks(runs: Sequence[Run], axis: str) -> list[str]:
    """Runs that were left out of all or some of the comparison, and one so short that it cuts that
    of all others, or validated on other problems.

    Raises ValueError as `begun_runs`.
    """
    notes = [f"left out, no training step yet: {run.path}" for run in runs if run.train.empty]
    begun = begun_runs(runs)
    compared = without_untrained(begun, axis)
    spent = {run.path: known_cost(run, axis) for run in compared}
    early = [run for run in begun if run.path not in spent]
    notes += [f"not compared, {_why_not(run)}: {run.path}" for run in early]
    shortest = min(spent, key=lambda path: spent[path])
    if spent[shortest] < SHORT * max(spent.values()):
        notes.append(
            f"all arms are compared at {spent[shortest]:,.0f} {AXIS_UNITS[axis]}, where "
            f"{shortest} was last validated; leave it out to compare them later"
        )
    arms = group_by_arm(compared)
    return [*notes, *_behind_others(arms), *_on_fewer_problems(arms)]


def _why_not(run: Run) -> str:
    if run.evaluations["rollout_step"].max() > 0:
        return "without counts by problem of a validation since its training began"
    return "not validated since its training began"


def _behind_others(arms: Arms) -> list[str]:
    """Runs that other seeds of their arm are ahead of, and what they are not part of for that."""
    early = [run for runs in arms.values() for run in split_by_end(runs)[1]]
    behind = {"last validations": early, "curves over training": without_short(arms)[1]}
    return [
        f"not in {what}, since other seeds of its arm got farther: {run.path}"
        for what, found in behind.items()
        for run in found
    ]


def _on_fewer_problems(arms: Arms) -> list[str]:
    most = {arm: max(len(run.sources) for run in runs) for arm, runs in arms.items()}
    return [
        f"validated on {len(run.sources)} problems, others of its arm on {most[arm]}, which is "
        f"compared on those that all have: {run.path}"
        for arm, runs in arms.items()
        for run in runs
        if 0 < len(run.sources) < most[arm]
    ]


def default_axis(runs: Sequence[Run]) -> str:
    """Tokens, or steps where some run did not record what it spent."""
    spent = [total_cost(run.train, "tokens") for run in runs]
    return "tokens" if np.isfinite(spent).all() else "steps"

"""A metric of training over windows of steps: means by arm, and differences to a control.

The steps of a window are given, and neighbouring ones are alike and may follow a trend, so a seed's
mean over the window is the unit: intervals are Student's over training seeds, of differences over
pairs of runs of one seed where both arms have the same. With one seed there is none.

A window is of the same steps in every run, so all runs must have them. Where runs are of unequal
length their ends are other steps, and no window can count from there.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import (
    difference_columns,
    interval_columns,
    same_seeds,
)
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.means import difference_of_units, mean_over_units

Window = tuple[int, int]


def metric_rows(
    arms: Arms,
    control: str | None,
    column: str,
    windows: Mapping[str, Window],
    level: float = 0.95,
) -> list[Row]:
    """Mean of a column of the train tables over each window of rollout steps.

    Args:
        arms: runs by arm; arms that did not record the column have no row.
        control: arm that the others are compared with, None for none.
        column: such as rollout/all_wrong.
        windows: first step and the one after the last, by name; negative ones count from the end,
            and 0 as the latter is the end. Steps that some seed has no value at are left out.
        level: coverage of all intervals.

    Returns:
        dicts with arm, metric, window, seeds, value and difference (None for the control), each
        with _low and _high, by_seed, and the columns that `families.judge_rows` needs;
        `paired_seeds`, False, where the control has as many other seeds.

    Raises:
        ValueError: a control that is no arm, a window without steps or of steps that some run
            lacks, or one that counts from the end of runs of unequal length.
    """
    if control is not None and control not in arms:
        raise ValueError(f"control={control!r} is no arm; there are {', '.join(arms)}")
    rows = []
    recorded = [run for runs in arms.values() for run in runs if column in run.train]
    for name, window in windows.items():
        steps = _common_steps(recorded, name, window) if recorded else window
        tables = {arm: _window_values(runs, column, steps) for arm, runs in arms.items()}
        base = tables.get(control) if control is not None else None
        for arm, table in tables.items():
            if table is not None:
                other = None if arm == control else base
                row = _row(table, other, f"{arm} - {control}: {column}, {name}", level)
                rows.append({"arm": arm, "metric": column, "window": name} | row)
    return rows


def _common_steps(runs: Sequence[Run], name: str, window: Window) -> Window:
    """A window counted from the start: steps that all runs have."""
    by_end = sorted(runs, key=_end)
    shortest, longest = by_end[0], by_end[-1]
    start, stop = window
    if (start < 0 or stop <= 0) and _end(shortest) != _end(longest):
        raise ValueError(
            f"window {name!r} {list(window)} counts from the end, which is step {_end(shortest)} "
            f"of {shortest.path} and {_end(longest)} of {longest.path}: give steps from the start"
        )
    start, stop = (start + _end(shortest) * (start < 0), stop + _end(shortest) * (stop <= 0))
    for run in (shortest, max(runs, key=_first)):
        if not _first(run) <= start < stop <= _end(run):
            raise ValueError(
                f"window {name!r} {list(window)}: {run.path} has no steps from {start} to {stop}; "
                f"it has {_first(run)} to {_end(run)}"
            )
    return start, stop


def _first(run: Run) -> int:
    return int(run.train["rollout_step"].min())


def _end(run: Run) -> int:
    """The step after a run's last one."""
    return int(run.train["rollout_step"].max()) + 1


def _window_values(runs: Sequence[Run], column: str, steps: Window) -> pd.DataFrame | None:
    """(S, steps) values of the column, a row per seed; steps that some seed lacks are left out."""
    recorded = [run for run in runs if column in run.train]
    if not recorded:
        return None
    series = []
    for run in recorded:
        values = run.train.set_index("rollout_step")[column]
        series.append(values[(values.index >= steps[0]) & (values.index < steps[1])])
    table = pd.concat(series, axis="columns", join="inner").dropna().T
    seeds = [run.seed for run in recorded]
    return None if table.empty else table.set_axis(seeds, axis="index").sort_index()


def _row(table: pd.DataFrame, other: pd.DataFrame | None, comparison: str, level: float) -> Row:
    by_seed = table.mean(axis="columns")
    row: Row = {"seeds": len(table), "by_seed": by_seed.tolist()}
    row |= interval_columns("value", mean_over_units(by_seed).interval(level))
    if other is None:
        return row | difference_columns(None, None, level)
    common = table.columns.intersection(other.columns)
    mine, its = (each[common].mean(axis="columns").to_numpy() for each in (table, other))
    paired = same_seeds(table, other)
    if not paired and len(table) == len(other):
        row["paired_seeds"] = False
    found = difference_of_units(mine, its, paired)
    return row | difference_columns(comparison, found, level, min(len(table), len(other)))

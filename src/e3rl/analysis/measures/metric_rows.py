"""A metric of training over windows of steps: means by arm, and differences to a control.

The steps of a window are given, and neighbouring ones are alike and may follow a trend, so a seed's
mean over the window is the unit: intervals are Student's over training seeds, of differences over
pairs of runs of one seed where both arms have the same. With one seed there is none.
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
            and 0 as the latter is the end.
        level: coverage of all intervals.

    Returns:
        dicts with arm, metric, window, seeds, value and difference (None for the control), each
        with _low and _high, by_seed, and the columns that `families.judge_rows` needs.

    Raises:
        ValueError: a control that is no arm, or a window without steps.
    """
    if control is not None and control not in arms:
        raise ValueError(f"control={control!r} is no arm; there are {', '.join(arms)}")
    rows = []
    for name, window in windows.items():
        tables = {arm: _window_values(runs, column, window) for arm, runs in arms.items()}
        base = tables.get(control) if control is not None else None
        for arm, table in tables.items():
            if table is not None:
                other = None if arm == control else base
                row = _row(table, other, f"{arm} - {control}: {column}, {name}", level)
                rows.append({"arm": arm, "metric": column, "window": name} | row)
    return rows


def _window_values(runs: Sequence[Run], column: str, window: Window) -> pd.DataFrame | None:
    """(S, steps) values of the column, a row per seed; steps that some seed lacks are left out."""
    series, seeds = [], []
    for run in runs:
        if column not in run.train:
            continue
        values = run.train.set_index("rollout_step")[column]
        end = int(values.index.max()) + 1
        start, stop = (step + end if step < 0 else step for step in window)
        stop = end if window[1] == 0 else stop
        part = values[(values.index >= start) & (values.index < stop)]
        if part.empty:
            raise ValueError(f"{run.path} has no steps from {start} to {stop}; it has {end}")
        series.append(part)
        seeds.append(run.seed)
    if not series:
        return None
    table = pd.concat(series, axis="columns", join="inner").dropna().T
    return None if table.empty else table.set_axis(seeds, axis="index").sort_index()


def _row(table: pd.DataFrame, other: pd.DataFrame | None, comparison: str, level: float) -> Row:
    by_seed = table.mean(axis="columns")
    row: Row = {"seeds": len(table), "by_seed": by_seed.tolist()}
    row |= interval_columns("value", mean_over_units(by_seed).interval(level))
    if other is None:
        return row | difference_columns(None, None, level)
    common = table.columns.intersection(other.columns)
    mine, its = (each[common].mean(axis="columns").to_numpy() for each in (table, other))
    found = difference_of_units(mine, its, same_seeds(table, other))
    return row | difference_columns(comparison, found, level)

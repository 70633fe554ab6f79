"""A metric of training over windows of steps: means by arm, and differences to a control.

Runs of one seed see the same prompts in the same order, unless their budget leaves prompts out or
hands them back, so a step is a unit that arms can be paired by: intervals resample seeds and steps
as those of validation resample seeds and problems. Neighbouring steps are alike, which the seeds
account for; with one seed the intervals are too narrow.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.comparison import difference_interval, interval_columns, mean_interval
from e3rl.analysis.sources.runs import Arms, Run

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
        with _low and _high, and by_seed.

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
                row = _row(table, other, level)
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


def _row(table: pd.DataFrame, other: pd.DataFrame | None, level: float) -> Row:
    row: Row = {"seeds": len(table), "by_seed": table.mean(axis="columns").tolist()}
    row |= interval_columns("value", mean_interval(table.to_numpy(dtype="float64"), level))
    if other is None:
        return row | interval_columns("difference", None)
    common = table.columns.intersection(other.columns)
    return row | interval_columns(
        "difference", difference_interval(table[common], other[common], level)
    )

"""A metric of training over stretches of steps: means by arm, and differences to a control.

Runs of one seed see the same prompts in the same order, unless their budget leaves prompts out or
hands them back, so a step is a unit that arms can be paired by: intervals resample seeds and steps
as those of validation resample seeds and problems. Neighbouring steps are alike, which the seeds
account for; with one seed the intervals are too narrow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from e3rl.analysis.comparison import bounds, difference_interval, mean_interval
from e3rl.analysis.runs import Run
from e3rl.analysis.style import arm_label
from e3rl.analysis.tables import Cells

Row = dict[str, Any]
Window = tuple[int, int]


def metric_rows(
    arms: Mapping[str, Sequence[Run]],
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
        tables = {arm: _stretch(runs, column, window) for arm, runs in arms.items()}
        base = tables.get(control) if control is not None else None
        for arm, table in tables.items():
            if table is not None:
                other = None if arm == control else base
                row = _row(table, other, level)
                rows.append({"arm": arm, "metric": column, "window": name} | row)
    return rows


def metric_cells(rows: Sequence[Row], percent: bool = False, digits: int = 1) -> Cells:
    """A row per arm, two columns per window: the mean and its difference to the control.

    Args:
        rows: of one metric, from `metric_rows`.
        percent: show shares in percent.
        digits: after the point.
    """
    if not rows:
        raise ValueError("no arm has recorded the metric")
    windows, arms = (list(dict.fromkeys(row[key] for row in rows)) for key in ("window", "arm"))
    found = {(row["arm"], row["window"]): row for row in rows}
    unit = " %" if percent else ""
    header = ["arm", *(title for w in windows for title in (f"{w}{unit}", f"Δ {w}"))]
    body = []
    for arm in arms:
        cells = [arm_label(arm)]
        for window in windows:
            row = found.get((arm, window))
            for name, sign in (("value", ""), ("difference", "+")):
                cells.append("" if row is None else interval_text(row, name, percent, digits, sign))
        body.append(cells)
    seeds = sorted({row["seeds"] for row in rows})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    note = (
        f"`{rows[0]['metric']}`, mean over steps; 95 % intervals over seeds and steps; Δ to "
        f"the control, paired by both; {count} seed{'s' * (seeds[-1] > 1)}."
    )
    return Cells(header, body, note)


def interval_text(row: Row, name: str, percent: bool, digits: int, sign: str = "") -> str:
    """`41.2 [38.0, 44.5]`; empty where there is none."""
    if row.get(name) is None:
        return ""
    scale = 100 if percent else 1
    middle, *ends = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    text = f"{scale * middle:{sign}.{digits}f}"
    if ends[0] is None:
        return text
    return f"{text} [{', '.join(f'{scale * x:{sign}.{digits}f}' for x in ends)}]"


def _stretch(runs: Sequence[Run], column: str, window: Window) -> pd.DataFrame | None:
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
    row |= bounds("value", mean_interval(table.to_numpy(dtype="float64"), level))
    if other is None:
        return row | bounds("difference", None)
    common = table.columns.intersection(other.columns)
    return row | bounds("difference", difference_interval(table[common], other[common], level))

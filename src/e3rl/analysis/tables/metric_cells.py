"""The table of a metric of training: a row per arm, its means over stretches of steps."""

from collections.abc import Sequence

from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.metric_rows import Row
from e3rl.analysis.tables.cells import Cells


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

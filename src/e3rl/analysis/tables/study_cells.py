"""Rows of the tables of a study as texts: metrics, costs to reach, resources, step responses."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.step_response import BAND, LATE, WINDOW
from e3rl.analysis.tables.cells import Cells, drop_empty_columns, interval_text, number_text

NO_ROWS = "no arm has what this table is about"


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
            row = found.get((arm, window), {})
            for name, sign in (("value", ""), ("difference", "+")):
                cells.append(interval_text(row, name, f"{sign}.{digits}f", 100 if percent else 1))
        body.append(cells)
    seeds = sorted({row["seeds"] for row in rows})
    count = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    note = (
        f"`{rows[0]['metric']}`, mean over steps; 95 % intervals over seeds and steps; Δ to "
        f"the control, paired by both; {count} seed{'s' * (seeds[-1] > 1)}."
    )
    return Cells(header, body, note)


def reaching_cells(rows: Sequence[Row]) -> Cells:
    """Costs (of rollouts and tokens in thousands), ratios to the control; `never` where the runs
    did not get there."""
    if not rows:
        raise ValueError(NO_ROWS)
    many = rows[0]["axis"] in ("rollouts", "tokens")
    title, scale = ("cost, thousands", 1e-3) if many else ("cost", 1.0)
    texts = [
        {
            "pass@1": f"{100 * row['target']:g} %",
            "arm": arm_label(row["arm"]),
            title: interval_text(row, "cost", ".1f", scale),
            "of the control's": interval_text(row, "ratio", ".2f"),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = (
        f"Cost in {AXIS_UNITS[rows[0]['axis']]} until the mean curve first reaches the accuracy; "
        f"{100 * rows[0]['level']:g} % intervals over seeds and problems. `never`: not "
        "at the cost that all runs reached; a ratio of 0: the control never."
    )
    return drop_empty_columns(texts, note)


def resource_cells(rows: Sequence[Row]) -> Cells:
    """Totals of training and shares of its seconds."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "rollouts": number_text(row["rollouts"], ",.0f"),
            "tokens, millions": number_text(row["tokens"], ".2f", 1e-6),
            "seconds": number_text(row["seconds"], ",.0f"),
            "CPU seconds": number_text(row["cpu_seconds"], ",.0f"),
            "tokens / s": number_text(row["tokens_per_second"], ",.0f"),
            "rollouts %": number_text(row["rollouts_share"], ".0f", 100),
            "update %": number_text(row["update_share"], ".0f", 100),
            "other %": number_text(row["other_share"], ".0f", 100),
            "memory, GiB": number_text(row["memory_gib"], ".2f"),
            "GPU memory, GiB": number_text(row["gpu_memory_gib"], ".2f"),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = "Means over seeds; training alone, without start and validation; memory at its peak."
    return drop_empty_columns(texts, note)


def response_cells(rows: Sequence[Row]) -> Cells:
    """Errors in percent of the target, settling in steps."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "error before %": number_text(row["before"], ".1f", 100),
            "dip %": number_text(row["dip"], "+.1f", 100),
            "steps to settle": number_text(row["settling"], ".1f"),
            "by seed": ", ".join(f"{each:.0f}" for each in row["settling_by_seed"]),
            "steady error %": number_text(row["steady"], "+.1f", 100),
            "noise %": number_text(row["noise"], ".1f", 100),
            "temperature rose by": number_text(row["rise"], ".2f"),
            "logits were multiplied by": number_text(row["wanted"], ".2f"),
        }
        for row in rows
    ]
    note = (
        f"Means over {rows[0]['seeds']} seeds. Settled: the {WINDOW}-step mean of the entropy "
        f"stays within {100 * BAND:g} % of its target, counted to the first of these steps; a run "
        "that never does counts with all steps that were left. Steady error and noise: mean and "
        f"standard deviation over the last {LATE} steps."
    )
    return drop_empty_columns(texts, note)


def frame_cells(table: pd.DataFrame, note: str, digits: int = 3) -> Cells:
    """Any table of numbers."""
    if table.empty:
        raise ValueError(NO_ROWS)
    body = [[_text(value, digits) for value in row] for row in table.itertuples(index=False)]
    return Cells([str(name) for name in table.columns], body, note)


def _text(value: Any, digits: int) -> str:
    if isinstance(value, str):
        return arm_label(value)
    if isinstance(value, float) and not value.is_integer():
        return "" if math.isnan(value) else f"{value:.{digits}g}"
    return f"{value:,.0f}"

"""Rows of single questions as tables of texts."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.costs import AXIS_UNITS
from e3rl.analysis.measures.step_response import BAND, LATE, WINDOW
from e3rl.analysis.tables.cells import Cells, without_empty_columns

Row = dict[str, Any]

NO_ROWS = "no arm has what this table is about"


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
            title: _interval(row, "cost", scale),
            "of the control's": _interval(row, "ratio", 1.0, digits=2),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = (
        f"Cost in {AXIS_UNITS[rows[0]['axis']]} until the mean curve first reaches the accuracy; "
        f"{100 * rows[0]['level']:g} % intervals over seeds and problems. `never`: not "
        "at the cost that all runs reached; a ratio of 0: the control never."
    )
    return without_empty_columns(texts, note)


def resource_cells(rows: Sequence[Row]) -> Cells:
    """Totals of training and shares of its seconds."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "rollouts": _number(row["rollouts"], ",.0f"),
            "tokens, millions": _number(row["tokens"], ".2f", 1e-6),
            "seconds": _number(row["seconds"], ",.0f"),
            "CPU seconds": _number(row["cpu_seconds"], ",.0f"),
            "tokens / s": _number(row["tokens_per_second"], ",.0f"),
            "rollouts %": _number(row["rollouts_share"], ".0f", 100),
            "update %": _number(row["update_share"], ".0f", 100),
            "other %": _number(row["other_share"], ".0f", 100),
            "memory, GiB": _number(row["memory_gib"], ".2f"),
            "GPU memory, GiB": _number(row["gpu_memory_gib"], ".2f"),
            "seeds": str(row["seeds"]),
        }
        for row in rows
    ]
    note = "Means over seeds; training alone, without start and validation; memory at its peak."
    return without_empty_columns(texts, note)


def response_cells(rows: Sequence[Row]) -> Cells:
    """Errors in percent of the target, settling in steps."""
    if not rows:
        raise ValueError(NO_ROWS)
    texts = [
        {
            "arm": arm_label(row["arm"]),
            "error before %": _number(row["before"], ".1f", 100),
            "dip %": _number(row["dip"], "+.1f", 100),
            "steps to settle": _number(row["settling"], ".1f"),
            "by seed": ", ".join(f"{each:.0f}" for each in row["settling_by_seed"]),
            "steady error %": _number(row["steady"], "+.1f", 100),
            "noise %": _number(row["noise"], ".1f", 100),
            "temperature rose by": _number(row["rise"], ".2f"),
            "logits were multiplied by": _number(row["wanted"], ".2f"),
        }
        for row in rows
    ]
    note = (
        f"Means over {rows[0]['seeds']} seeds. Settled: the {WINDOW}-step mean of the entropy "
        f"stays within {100 * BAND:g} % of its target, counted to the first of these steps; a run "
        "that never does counts with all steps that were left. Steady error and noise: mean and "
        f"standard deviation over the last {LATE} steps."
    )
    return without_empty_columns(texts, note)


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


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "" if value is None else f"{scale * value:{form}}"


def _interval(row: Row, name: str, scale: float, digits: int = 1) -> str:
    """`12.3 [11.0, never]`; empty where there is none."""
    if row[name] is None:
        return ""
    texts = [
        "never" if math.isinf(row[key]) else f"{scale * row[key]:.{digits}f}"
        for key in (name, f"{name}_low", f"{name}_high")
    ]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"

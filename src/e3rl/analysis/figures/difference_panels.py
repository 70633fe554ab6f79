"""What arms have less a control, paired by seed: for curves that lie on top of one another."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from e3rl.analysis.figures.small_multiples import draw_band
from e3rl.analysis.figures.style import INK, arm_colour, make_panels, note_below, write_reason
from e3rl.analysis.figures.validation_panels import (
    draw_pass_at_k_of_arms,
    evaluation_title,
    format_k_axis,
)
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.curves import Band, seed_band
from e3rl.analysis.measures.evaluations import find_evaluation
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.analysis.tables.comparison_table import interval_words

COLUMNS, HEIGHT = 3, 2.7  # panels in a row; inches


def draw_pass_at_k_less_control(arms: Arms, control: str, name: str) -> Figure:
    """pass@k of the control beside that of the untrained policy, and a panel for what each other
    arm has less the control."""
    rows = _rows_at_k(arms, control, name)
    found = _bands((int(row["measure"].rpartition("@")[2]), row) for row in rows)
    others = [arm for arm in arms if arm != control]
    figure, axes = make_panels(1 + len(others), COLUMNS, share_x=True, height=HEIGHT)
    draw_pass_at_k_of_arms(axes[0], {control: arms[control]}, name)
    axes[0].set_title(f"{arm_label(control)}, {evaluation_title(name)}")
    axes[0].legend(loc="lower right")
    for i, (ax, arm) in enumerate(zip(axes[1:], others, strict=True), 1):
        ax.set_title(arm_label(arm), color=arm_colour(arm, list(arms)))
        draw_differences(ax, {arm: found[arm]} if arm in found else {}, arms, dots=True)
        ax.set_ylabel(f"points, less {arm_label(control)}" if i == 1 or i % COLUMNS == 0 else "")
    share_heights(axes[1:])
    ks = sorted(set(chain.from_iterable(band.x for band in found.values())))
    for i, ax in enumerate(axes):
        format_k_axis(ax, ks)
        ax.set_xlabel(ax.get_xlabel() if i + COLUMNS >= len(axes) else "")
    over, paired = interval_words(rows)
    note_below(
        figure,
        f"95 % intervals {over}, each by itself and uncorrected, differences {paired}; after the "
        "last step of each run, whatever it had cost",
    )
    return figure


def draw_differences(ax: Axes, found: Mapping[str, Band], arms: Arms, dots: bool = False) -> None:
    """Differences of arms over a line at 0."""
    if not found:
        return write_reason(ax, "not measured")
    ax.axhline(0, color=INK, linewidth=0.9)
    for arm, band in found.items():
        line = draw_band(ax, band, arm_colour(arm, list(arms)), dots)
        line.set_label(arm_label(arm))


def share_heights(axes: Sequence[Axes]) -> None:
    """One scale of heights for panels that have something drawn."""
    drawn = [ax for ax in axes if ax.lines]
    low, high = zip(*(ax.get_ylim() for ax in drawn), strict=True) if drawn else ((0.0,), (1.0,))
    for ax in axes:
        ax.set_ylim(min(low), max(high))


def _rows_at_k(arms: Arms, control: str, name: str) -> list[Row]:
    """pass@k beside the control's at powers of two, after the last step of each run."""
    base = find_evaluation(arms[control], name)
    if base is None:
        return []
    return compare_arms(arms, control, base.ks(), "steps", cost=float("inf"), evaluations=[name])


def metric_differences(arms: Arms, control: str, column: str, window: int) -> dict[str, Band]:
    """A metric of training less the control's, seed by seed: mean and range over seeds."""
    base = {run.seed: run for run in arms[control]}
    found = {}
    for arm, runs in arms.items():
        pairs = [(run, base[run.seed]) for run in runs if arm != control and run.seed in base]
        band = seed_band([_less(*pair, column) for pair in pairs], column, window)
        if band is not None:
            found[arm] = band
    return found


def _less(run: Run, other: Run, column: str) -> pd.DataFrame:
    mine, base = (each.train.set_index("rollout_step").get(column) for each in (run, other))
    if mine is None or base is None:
        return pd.DataFrame()
    return (mine - base).dropna().rename(column).reset_index()


def _bands(found: Iterable[tuple[float, Row]]) -> dict[str, Band]:
    """Differences of rows, each with its place, as a band for each arm."""
    rows_of: dict[str, list[tuple[float, Row]]] = {}
    for x, row in found:
        if row["difference"] is not None:
            rows_of.setdefault(row["arm"], []).append((x, row))
    return {arm: _band(rows) for arm, rows in rows_of.items()}


def _band(rows: Sequence[tuple[float, Row]]) -> Band:
    """Differences in points over their places; NaN for bounds that do not exist."""
    mean, low, high = (
        np.array([100 * row[end] if row[end] is not None else np.nan for _, row in rows])
        for end in ("difference", "difference_low", "difference_high")
    )
    x = np.array([x for x, _ in rows], dtype=np.float64)
    return Band(x, mean, low, high, rows[0][1]["seeds"])

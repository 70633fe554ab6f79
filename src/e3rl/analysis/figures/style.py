"""The look of every figure: colours by arm, thin grids, panels, sizes that suit a README."""

import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.axes import AXIS_LABELS
from e3rl.analysis.sources.runs import Arms, Run

P = ParamSpec("P")

# Okabe and Ito's palette (distinct under every common colour blindness), the control in grey.
ARM_COLOURS = {
    "grpo": "#5F6B7A",
    "grpo_er": "#E69F00",
    "ts": "#56B4E9",
    "ts_an": "#0072B2",
    "budget": "#009E73",
    "e3": "#D55E00",
}
OTHER_COLOURS = (
    *("#CC79A7", "#8C6D31", "#3B3B98", "#7A9A01"),
    *("#C44E52", "#1B9AAA", "#B8860B", "#6A3D9A"),
)
BEYOND = "#9AA3AD"  # of arms that the colours do not reach: grey, and named where they are drawn
EVALUATION_COLOURS = {
    "t1": "#0072B2",
    "greedy": "#5F6B7A",
    "live": "#D55E00",
    "matched": "#009E73",
}
OUTCOME_COLOURS = {"all wrong": "#D98A7B", "mixed": "#E9E4D8", "all right": "#8FBFA6"}

NARROW, WIDE, PANEL_HEIGHT = 6.4, 9.2, 3.7  # inches
SEED_BANDS = ", bands: smallest to largest seed"
SHORTER = "trained far less than other seeds"

INK, MUTED, GRID = "#22272E", "#6B7480", "#E4E7EB"
BASELINE = "#A3ABB5"

STYLE: dict[Any, Any] = {  # matplotlib types the keys as one long literal
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#B8BFC8",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.6,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "white",
    "figure.dpi": 110,
    "savefig.dpi": 200,
}


def with_style(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a drawing function under `STYLE` and leave matplotlib's global settings untouched."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def arm_colour(arm: str, arms: Sequence[str] = ()) -> str:
    """Fixed colour of a known arm, and of one that is called after it, as smollm2_ts_an is, where
    no arm before it has that; others take the spare colours in their order in `arms`.

    No two arms share a colour: those beyond the spare ones are `BEYOND`, see `name_line`.
    """
    names = arms if arm in arms else (arm,)
    taken, spare = set(names) & ARM_COLOURS.keys(), iter(OTHER_COLOURS)
    found = {}
    for name in names:
        known = _known_as(name)
        if known and (name == known or known not in taken):
            taken.add(known)
            found[name] = ARM_COLOURS[known]
        else:
            found[name] = next(spare, BEYOND)
    return found[arm]


def _known_as(arm: str) -> str | None:
    """The longest name of a known arm that this one is, or ends with."""
    ends = [known for known in ARM_COLOURS if f"_{arm}".endswith(f"_{known}")]
    return max(ends, key=len, default=None)


def name_line(ax: Axes, line: Line2D, arm: str, colour: str) -> None:
    """The arm's name for the legend, or at the line's end where it has no colour of its own."""
    if colour != BEYOND:
        line.set_label(arm)
        return
    x, y = (np.asarray(values, dtype=np.float64) for values in line.get_data())
    known = np.flatnonzero(np.isfinite(y))
    if known.size:
        place = (float(x[known[-1]]), float(y[known[-1]]))
        ax.annotate(
            arm,
            place,
            xytext=(3, 0),
            textcoords="offset points",
            fontsize=6.5,
            color=MUTED,
            va="center",
        )


def format_cost_axis(ax: Axes, axis: str = "steps", places: int = 7) -> None:
    """An axis of `axes.AXES` with whole numbers, large ones in thousands or millions."""
    ax.set_xlabel(AXIS_LABELS[axis])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=places))
    if axis != "steps":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.margins(x=0.015)


def format_percent_axis(ax: Axes, label: str, vertical: bool = True) -> None:
    """An axis of shares between 0 and 1, shown in percent."""
    axis: Axis = ax.yaxis if vertical else ax.xaxis
    axis.set_label_text(label)
    axis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def note_below(figure: Figure, note: str) -> None:
    """A note below the panels, in lines that fit the figure."""
    width = int(17.5 * figure.get_size_inches()[0])  # letters of this size to an inch
    lines = [line for part in note.split("\n") for line in textwrap.wrap(part, width)]
    figure.supxlabel("\n".join(lines), x=0.99, ha="right", fontsize=7.5, color=MUTED)


def name_left_out(figure: Figure, runs: Sequence[Run], why: str) -> Figure:
    """The figure, its note with the runs that are not in it, where there are such."""
    if runs:
        named = ", ".join(f"{arm_label(run.name)} seed {run.seed}" for run in runs)
        note = figure.get_supxlabel().replace("\n", " ")
        note_below(figure, "; ".join([note] * bool(note) + [f"left out, {why}: {named}"]))
    return figure


def draw_legend_on_top(ax: Axes) -> None:
    """A legend in lines of three inside the panel, with room made for it above the curves."""
    low, high = ax.get_ylim()
    lines = -(-len(ax.get_legend_handles_labels()[1]) // 3)
    ax.set_ylim(low, high + (0.06 + 0.07 * lines) * (high - low))
    ax.legend(
        loc="upper left",
        ncols=3,
        columnspacing=1.1,
        handlelength=1.3,
        handletextpad=0.5,
        borderaxespad=0.2,
        frameon=True,
        framealpha=1,
        edgecolor="none",
    )


def tint(colour: str, share: float) -> tuple[float, float, float]:
    """`share` of the colour mixed with white; opaque, so that grids do not shine through."""
    red, green, blue = (1 - share * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def write_reason(ax: Axes, reason: str) -> None:
    """Write into a panel without curves why there are none."""
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    ax.grid(False)


def draw_empty(ax: Axes, reason: str) -> None:
    """Write into a panel without curves why there are none, and leave out the ticks, which panels
    that share its axes would lose too."""
    write_reason(ax, reason)
    ax.set_xticks([])
    ax.set_yticks([])


def make_panels(
    count: int,
    columns: int = 2,
    share_x: bool = False,
    share_y: bool = False,
    height: float = PANEL_HEIGHT,
) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels in rows of `columns`, each `height` inches high."""
    columns = min(count, columns)
    rows = -(-count // columns)
    size = (NARROW if columns == 1 else WIDE, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=share_x, sharey=share_y)
    axes = list(grid.flat)
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def draw_shared_legend(figure: Figure, ax: Axes, arms: Arms, bands: str = SEED_BANDS) -> None:
    """The legend of `ax` above the panels, and below them what lines and bands mean."""
    most = max(len(runs) for runs in arms.values())
    if most > 1:
        note_below(figure, f"lines: mean of up to {most} seeds{bands}")
    handles, labels = ax.get_legend_handles_labels()
    if len(labels) > 1:
        even = {-(-len(labels) // lines) for lines in range(1, len(labels) + 1)}
        for columns in sorted(even, reverse=True):  # as many as fit
            legend = figure.legend(
                handles, labels, loc="outside upper left", ncols=columns, columnspacing=1.4
            )
            if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
                break
            legend.remove()

"""The look of every figure: colours by arm, thin grids, sizes that read at README width."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from e3rl.analysis.measures.costs import AXIS_LABELS

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
EVALUATION_COLOURS = {
    "t1": "#0072B2",
    "greedy": "#5F6B7A",
    "live": "#D55E00",
    "matched": "#009E73",
}
OUTCOME_COLOURS = {"all wrong": "#D98A7B", "mixed": "#E9E4D8", "all right": "#8FBFA6"}

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


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Run a drawing function under `STYLE` and leave matplotlib's global settings untouched."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def arm_colour(arm: str, arms: Sequence[str] = ()) -> str:
    """Fixed colour of a known arm; others take the spare colours in their order in `arms`."""
    if arm in ARM_COLOURS:
        return ARM_COLOURS[arm]
    others = [name for name in arms if name not in ARM_COLOURS]
    return OTHER_COLOURS[others.index(arm) % len(OTHER_COLOURS) if arm in others else 0]


def cost_axis(ax: Axes, axis: str = "steps") -> None:
    """An axis of `costs.AXES` with whole numbers, large ones in thousands or millions."""
    ax.set_xlabel(AXIS_LABELS[axis])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7))
    if axis != "steps":
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.margins(x=0.015)


def percent_axis(ax: Axes, label: str) -> None:
    """A y axis of shares between 0 and 1, shown in percent."""
    ax.set_ylabel(label)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def legend_on_top(ax: Axes) -> None:
    """A legend in one line inside the panel, with room made for it above the curves."""
    low, high = ax.get_ylim()
    ax.set_ylim(low, high + 0.13 * (high - low))
    ax.legend(
        loc="upper left",
        ncols=len(ax.get_legend_handles_labels()[1]),
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


def empty(ax: Axes, reason: str) -> None:
    """Say in place of the curves why there are none."""
    ax.text(0.5, 0.5, reason, transform=ax.transAxes, ha="center", va="center", color=MUTED)
    ax.grid(False)
    ax.set_xticks([])
    ax.set_yticks([])

"""A panel per arm, for more arms than one panel can hold: their curves would hide each other."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from e3rl.analysis.figures.style import INK, arm_colour, make_panels, note_below, write_reason
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.curves import Band
from e3rl.analysis.sources.runs import Arms

PALE = "#D9DDE2"  # of lines that are there for comparison
COLUMNS, HEIGHT = 4, 2.4  # panels in a row; inches


def _draw_nothing(ax: Axes, arm: str) -> None:
    """Behind curves that have nothing behind them."""


@dataclass(frozen=True)
class Panels:
    """A quantity of every arm, for a panel each."""

    curves: Mapping[str, Band]  # of the arms that have it
    label: Callable[[Axes], None]  # writes both axes
    behind: Callable[[Axes, str], None] = _draw_nothing  # what else the panel of an arm shows
    beside: str = ""  # title of the panel that stands beside another quantity of the same arm
    dots: bool = False  # at the points of curves
    notes: Sequence[str] = ()  # what bands and other marks are


def draw_multiples(arms: Arms, control: str | None, shown: Sequence[Panels], title: str) -> Figure:
    """Every arm but the control (the first one where none is given) in panels of its own, one for
    each quantity: the arm in colour, the control in black, all others pale, on the same axes.

    An arm that a quantity has no curve of is said to be not measured.
    """
    base = control or next(iter(arms))
    panels = list(product((arm for arm in arms if arm != base), shown))
    figure, axes = make_panels(len(panels), COLUMNS, share_x=True, share_y=True, height=HEIGHT)
    for i, (ax, (arm, each)) in enumerate(zip(axes, panels, strict=True)):
        colour = arm_colour(arm, list(arms))
        ax.set_title(arm_label(arm) if each is shown[0] else each.beside, color=colour)
        if arm in each.curves:
            each.behind(ax, arm)
            draw_beside_others(ax, each, arm, base, colour)
        else:
            write_reason(ax, "not measured")
        each.label(ax)
        last = i + COLUMNS >= len(panels)
        ax.set(xlabel=ax.get_xlabel() * last, ylabel=ax.get_ylabel() * (i % COLUMNS == 0))
        ax.tick_params(labelbottom=last)
    most = max(len(runs) for runs in arms.values())
    figure.suptitle(f"{title}; black: {arm_label(base)}", x=0.01, ha="left", fontsize=9)
    notes = [f"lines: mean of up to {most} seeds"] * (most > 1) + ["pale: the other arms"]
    notes += dict.fromkeys(note for each in shown for note in each.notes)
    note_below(figure, "; ".join(notes))
    return figure


def explain_ranges(curves: Mapping[str, Band]) -> list[str]:
    """What the bands of curves from `seed_band` are, where some arm has several seeds."""
    return ["bands: smallest to largest seed"] * any(band.n_seeds > 1 for band in curves.values())


def draw_beside_others(ax: Axes, shown: Panels, arm: str, control: str, colour: str) -> None:
    """One arm's curve in colour and the control's in black, with bands; the others pale."""
    for each, band in shown.curves.items():
        if each not in (arm, control):
            ax.plot(band.x, band.mean, color=PALE, linewidth=0.8)
    for each, shade in ((control, INK), (arm, colour)):
        if each in shown.curves:
            draw_band(ax, shown.curves[each], shade, shown.dots)


def draw_band(ax: Axes, band: Band, colour: str, dots: bool) -> Line2D:
    """A curve with its band; a single point has an upright line."""
    if len(band.x) == 1:
        ax.plot([band.x[0]] * 2, [band.low[0], band.high[0]], color=colour, linewidth=1.0)
    ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.12, linewidth=0)
    (line,) = ax.plot(band.x, band.mean, color=colour, marker="o" if dots else None, markersize=3.5)
    return line

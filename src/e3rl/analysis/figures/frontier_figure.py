"""The figure of frontiers: pass@k against pass@1 as policies are sampled hotter."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from e3rl.analysis.figures.style import (
    MUTED,
    arm_colour,
    format_percent_axis,
    make_panels,
    note_below,
    with_style,
)
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.frontier import UNTRAINED, frontier_rows, frontier_sources
from e3rl.analysis.sources.runs import Arms

FRONTIER = "Frontier over sampling temperatures"
NARROWEST = 0.06  # that a panel of shares shows
BARS = (
    "bars: 95 % intervals of an arm by itself; differences of arms, which are paired, "
    "can be told even where bars overlap"
)


class Place(NamedTuple):
    """Two numbers to the right and up."""

    x: float
    y: float


LABEL = Place(24.0, 9.0)  # pixels that the label of a point takes
DOT = 3.0  # pixels from the middle of a point to its edge
SIDES = (Place(3, 4), Place(3, -10), Place(-17, 4), Place(-17, -10))  # of a point, in points


def frontier_figure(arms: Arms, k: int | None = None) -> Figure:
    """`draw_frontier` of the arms' last validations and of the policy before training.

    Raises ValueError as `frontier_rows`.
    """
    rows = frontier_rows(arms, k)
    return draw_frontier(rows, list(arms), frontier_sources(rows))


@with_style
def draw_frontier(rows: Sequence[Row], arms: Sequence[str], sources: str) -> Figure:
    """pass@k against pass@1 over sampling temperatures, a curve per arm and the first policy, with
    their intervals; where that one lies beyond all arms, a second panel has the arms alone, closer.

    What was sampled at one temperature has no curve: it is left out, and named, beside what has.

    Args:
        rows: as `frontier_rows` makes them, of one k.
        arms: all, for their colours.
        sources: a sentence for the note: what the points are of.
    """
    shown, left_out = curves_alone(rows)
    panels = [(FRONTIER, shown)]
    if is_beyond(shown):
        trained = [row for row in shown if row["arm"] != UNTRAINED]
        panels = [("Before and after training", shown), ("After training, closer", trained)]
    figure, axes = make_panels(len(panels))
    for ax, (title, group) in zip(axes, panels, strict=True):
        ax.set_title(title)
        for arm in dict.fromkeys(row["arm"] for row in group):
            _draw_curve(ax, [row for row in group if row["arm"] == arm], arm, arms)
        format_percent_axis(ax, f"pass@{rows[0]['k']}")
        format_percent_axis(ax, "pass@1", vertical=False)
        widen(ax)
        ax.legend(loc="best")
    notes = ["numbers: temperatures, where there is room", BARS, sources]
    if left_out:
        names = ", ".join(_curve_label(arm) for arm in left_out)
        notes.append(f"At one temperature, and left out: {names}.")
    note_below(figure, "\n".join(notes))
    figure.draw_without_rendering()  # before it axes have neither their limits nor their place
    for ax, (_, group) in zip(axes, panels, strict=True):
        write_temperatures(ax, ends_first(group), arms)
    return figure


def widen(ax: Axes) -> None:
    """Room around the points, and at least `NARROWEST` on either axis."""
    ax.margins(0.12)
    for limits, change in ((ax.get_xlim(), ax.set_xlim), (ax.get_ylim(), ax.set_ylim)):
        middle, half = sum(limits) / 2, max(NARROWEST, limits[1] - limits[0]) / 2
        change(middle - half, middle + half)


def is_beyond(rows: Sequence[Row]) -> bool:
    """Whether the first policy has less, or more, of one measure than all arms at any temperature,
    so that one scale for all would leave no room for the arms."""
    before = [row for row in rows if row["arm"] == UNTRAINED]
    after = [row for row in rows if row["arm"] != UNTRAINED]
    if not before or not after:
        return False
    return any(
        max(row[axis] for row in one) < min(row[axis] for row in other)
        for axis in ("pass@1", "pass@k")
        for one, other in ((before, after), (after, before))
    )


def curves_alone(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """Rows of arms with several temperatures, and the names of the others; all rows where no arm
    has several."""
    seen = Counter(row["arm"] for row in rows)
    if max(seen.values()) == 1:
        return list(rows), []
    kept = [row for row in rows if seen[row["arm"]] > 1]
    return kept, [arm for arm, points in seen.items() if points == 1]


def ends_first(rows: Sequence[Row]) -> list[Row]:
    """Both ends of every curve, then what lies between them."""
    curves = [
        [row for row in rows if row["arm"] == arm] for arm in dict.fromkeys(r["arm"] for r in rows)
    ]
    ends = [row for curve in curves for row in (curve[0], *curve[1:][-1:])]
    return [*ends, *(row for curve in curves for row in curve[1:-1])]


def _curve_label(arm: str) -> str:
    return "before training" if arm == UNTRAINED else arm_label(arm)


def _draw_curve(ax: Axes, rows: Sequence[Row], arm: str, arms: Sequence[str]) -> None:
    colour, line = _colour(arm, arms), (0, (4, 2)) if arm == UNTRAINED else "-"
    x, y = ([row[name] for row in rows] for name in ("pass@1", "pass@k"))
    ax.plot(x, y, color=colour, marker="o", markersize=4, linestyle=line, label=_curve_label(arm))
    for bars, name, places in ((ax.hlines, "pass@1", y), (ax.vlines, "pass@k", x)):
        low, high = ([row[f"{name}_{end}"] for row in rows] for end in ("low", "high"))
        bars(places, low, high, colors=colour, linewidth=0.8, alpha=0.4, zorder=1)


def _colour(arm: str, arms: Sequence[str]) -> str:
    return MUTED if arm == UNTRAINED else arm_colour(arm, arms)


def write_temperatures(ax: Axes, rows: Sequence[Row], arms: Sequence[str]) -> None:
    """The temperature beside each point, on a side where no other one's and no point is."""
    points = [Place(*ax.transData.transform((row["pass@1"], row["pass@k"]))) for row in rows]
    taken: list[Place] = []
    for row, point in zip(rows, points, strict=True):
        found = next(
            (each for each in SIDES if _is_free(_corner(ax, point, each), taken, points)), None
        )
        if found is None:
            continue
        taken.append(_corner(ax, point, found))
        ax.annotate(
            f"{row['temperature']:.2f}".rstrip("0").rstrip("."),
            (row["pass@1"], row["pass@k"]),
            xytext=found,
            textcoords="offset points",
            fontsize=6.5,
            color=_colour(row["arm"], arms),
            path_effects=[withStroke(linewidth=2, foreground="white")],  # readable over curves
        )


def _corner(ax: Axes, point: Place, side: Place) -> Place:
    """The lower left corner of a label in pixels; `side` is its offset in points."""
    pixels = ax.figure.dpi / 72
    return Place(point.x + pixels * side.x, point.y + pixels * side.y)


def _is_free(corner: Place, taken: Sequence[Place], points: Sequence[Place]) -> bool:
    """Whether a label with this lower left corner covers no other label and no point."""
    apart = (abs(corner.x - x) >= LABEL.x or abs(corner.y - y) >= LABEL.y for x, y in taken)
    beside = (
        not (-DOT <= x - corner.x <= LABEL.x + DOT and -DOT <= y - corner.y <= LABEL.y + DOT)
        for x, y in points
    )
    return all(apart) and all(beside)

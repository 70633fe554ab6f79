"""Figures that compare: paired differences with their intervals, and frontiers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from e3rl.analysis.figures.style import (
    INK,
    MUTED,
    arm_colour,
    format_percent_axis,
    make_panels,
    note_below,
    with_style,
)
from e3rl.analysis.figures.validation_panels import evaluation_title
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.families import BETTER, WORSE
from e3rl.analysis.measures.frontier import UNTRAINED, frontier_rows, frontier_sources
from e3rl.analysis.sources.runs import Arms
from e3rl.analysis.tables.comparison_table import interval_words

Paper = Mapping[str, Mapping[str, float]]  # points by arm and measure
ROW_HEIGHT = 0.36  # inches
FRONTIER = "Frontier over sampling temperatures"
NARROWEST = 0.06  # that a panel of shares shows


class Place(NamedTuple):
    """Two numbers to the right and up."""

    x: float
    y: float


LABEL = Place(24.0, 9.0)  # pixels that the label of a point takes
DOT = 3.0  # pixels from the middle of a point to its edge
SIDES = (Place(3, 4), Place(3, -10), Place(-17, 4), Place(-17, -10))  # of a point, in points


@with_style
def forest_figure(
    rows: Sequence[Row],
    arms: Sequence[str],
    measures: Sequence[str] = ("pass@1",),
    evaluations: Sequence[str] = ("t1",),
    paper: Paper | None = None,
    also: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Paired differences to the control: an arm a row, an endpoint a panel.

    Args:
        rows: from `compare_arms`, judged together with all that is printed.
        arms: all, for their colours.
        measures: endpoints, such as pass@1.
        evaluations: endpoints, such as t1.
        paper: what a paper reports as differences, in points, by arm and measure; of pairs by
            "arm - other".
        also: pairs of arms, the first less the second, that stand below the others.

    Raises ValueError where no row has such an endpoint, or none is of a pair.
    """
    shown = compared_rows(rows, measures, evaluations, also)
    ends = list(dict.fromkeys((row["evaluation"], row["measure"]) for row in shown))
    if not ends:
        raise ValueError(f"no arm has {list(measures)} in {list(evaluations)} to compare")
    control = control_name(shown[0])
    names = list(dict.fromkeys(row_name(row, control) for row in shown))
    height = 1.1 + ROW_HEIGHT * (len(names) + 1)
    figure, axes = make_panels(len(ends), columns=3, share_x=True, height=height)
    for i, (ax, end) in enumerate(zip(axes, ends, strict=True)):
        ax.set_title(f"{end[1]} {evaluation_title(end[0])}", fontsize=9)
        here = {
            row_name(row, control): row
            for row in shown
            if (row["evaluation"], row["measure"]) == end
        }
        draw_forest(ax, here, names, arms, (paper or {}))
        elsewhere = " where no other arm is named" if also else ""
        ax.set_xlabel(f"points, less {arm_label(control)}{elsewhere}")
        if i % 3:
            ax.set_yticklabels([])
    note_below(figure, forest_note(shown, bool(paper)))
    return figure


def compared_rows(
    rows: Sequence[Row],
    measures: Sequence[str],
    evaluations: Sequence[str],
    also: Sequence[tuple[str, str]] = (),
) -> list[Row]:
    """Rows of arms that are compared with a control, of these endpoints; each once, and all with
    the control of the first, but for the pairs `also`, which come last.

    Raises ValueError where one of these is in no row.
    """
    found: dict[tuple[str, str, str, str], Row] = {}
    for row in rows:
        wanted = row.get("measure") in measures and row.get("evaluation") in evaluations
        if wanted and row.get("against") and row["difference"] is not None:
            key = row["arm"], control_name(row), row["evaluation"], row["measure"]
            found.setdefault(key, row)
    control = next((key[1] for key in found), "")
    kept = [row for key, row in found.items() if key[1] == control]
    for pair in map(tuple, also):
        of_pair = [row for key, row in found.items() if key[:2] == pair]
        if not of_pair:
            raise ValueError(f"no table compares {' with '.join(pair)}, which a forest is to show")
        kept += of_pair
    return kept


def row_name(row: Row, control: str) -> str:
    """The arm, and what it is less, where that is not the control of the others."""
    own = control_name(row)
    return str(row["arm"]) if own == control else f"{row['arm']} - {own}"


def control_name(row: Row) -> str:
    """The arm that a row compares with."""
    return str(row["against"]).rpartition(" ")[0]


def draw_forest(
    ax: Axes, rows: Mapping[str, Row], names: Sequence[str], arms: Sequence[str], paper: Paper
) -> None:
    """One endpoint: differences in points with intervals, by name, filled where there is a
    verdict."""
    ax.axvline(0, color=INK, linewidth=0.9)
    for name, row in rows.items():
        place, colour = names.index(name), arm_colour(row["arm"], arms)
        mean = 100 * row["difference"]
        if row["difference_low"] is not None and row["difference_high"] is not None:
            ends = [100 * row["difference_low"], 100 * row["difference_high"]]
            style = (0, (2, 2)) if row.get("unmatched") else "-"
            ax.plot(ends, [place, place], color=colour, linewidth=1.5, linestyle=style)
        face = colour if row["verdict"] in (BETTER, WORSE) else "white"
        ax.plot([mean], [place], "o", color=colour, markersize=5.5, markerfacecolor=face)
        claimed = paper.get(name, {}).get(row["measure"])
        if claimed is not None:
            ax.plot([claimed], [place], "D", color=INK, markersize=4.5, markerfacecolor="white")
    ax.set_yticks(range(len(names)), [pair_label(name) for name in names], color=INK)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(False, axis="y")


def pair_label(name: str) -> str:
    """An arm's label, or the two of "arm - other", of which one of several words has brackets."""
    first, *others = [arm_label(arm) for arm in name.split(" - ")]
    less = [f"({label})" if " " in label else label for label in others]
    return " \u2212 ".join([first, *less])


def forest_note(rows: Sequence[Row], paper: bool = False) -> str:
    """What the marks of a forest plot mean, and what its intervals are over."""
    first = rows[0]
    corrected = any(row.get("p_adjusted") is not None for row in rows)
    place = f"at {first['cost']:,.0f} {AXIS_UNITS[first['axis']]}"
    late = dict.fromkeys(row["measure"] for row in rows if _spent_unlike(row))
    if late:
        place += f" ({', '.join(late)}: after the last validation, costs unlike)"
    parts = [
        f"{100 * first['level']:g} % intervals {', '.join(interval_words(rows))}, {place}",
        "filled: better or worse" + (" after Holm's correction" if corrected else ", uncorrected"),
    ]
    if any(row.get("unmatched") for row in rows):
        parts.append("dashed: entropies unlike, no verdict")
    if paper:
        parts.append("diamonds: the paper")
    return "; ".join(parts)


def _spent_unlike(row: Row) -> bool:
    own, other = row.get("spent"), row.get("against_spent")
    return own is not None and other is not None and abs(own - other) > 0.0005 * other


@with_style
def frontier_figure(arms: Arms, k: int | None = None) -> Figure:
    """pass@k against pass@1 over sampling temperatures, a curve per arm and the first policy; that
    one in a panel of its own where it lies beyond all arms.

    What was sampled at one temperature has no curve: it is left out, and named, beside what has.
    """
    rows, left_out = curves_alone(frontier_rows(arms, k))
    first = [row for row in rows if row["arm"] == UNTRAINED] if is_beyond(rows) else []
    groups = [group for group in (first, [row for row in rows if row not in first]) if group]
    figure, axes = make_panels(len(groups))
    titles = ["Before training", "After training"] if first else [FRONTIER]
    for ax, group, title in zip(axes, groups, titles, strict=True):
        ax.set_title(title)
        for arm in dict.fromkeys(row["arm"] for row in group):
            _draw_curve(ax, [row for row in group if row["arm"] == arm], arm, list(arms))
        format_percent_axis(ax, f"pass@{rows[0]['k']}")
        format_percent_axis(ax, "pass@1", vertical=False)
        widen(ax)
        ax.legend(loc="best")
    notes = ["numbers: temperatures, where there is room", frontier_sources(rows)]
    if first:
        notes[0] += "; each panel has its own scales"
    if left_out:
        names = ", ".join(_curve_label(arm) for arm in left_out)
        notes.append(f"At one temperature, and left out: {names}.")
    note_below(figure, "\n".join(notes))
    figure.draw_without_rendering()  # before it axes have neither their limits nor their place
    for ax, group in zip(axes, groups, strict=True):
        write_temperatures(ax, ends_first(group), list(arms))
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
    x, y = [row["pass@1"] for row in rows], [row["pass@k"] for row in rows]
    line = (0, (4, 2)) if arm == UNTRAINED else "-"
    colour = _colour(arm, arms)
    ax.plot(x, y, color=colour, marker="o", markersize=4, linestyle=line, label=_curve_label(arm))


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

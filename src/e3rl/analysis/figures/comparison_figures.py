"""Figures that compare: paired differences with their intervals."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from e3rl.analysis.figures.style import (
    INK,
    arm_colour,
    make_panels,
    note_below,
    with_style,
)
from e3rl.analysis.figures.validation_panels import evaluation_title
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.families import BETTER, WORSE
from e3rl.analysis.tables.comparison_table import interval_words

Paper = Mapping[str, Mapping[str, float]]  # points by arm and measure
ROW_HEIGHT = 0.36  # inches


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

"""The picture of carries_across_sets: every set's difference, and their average below."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from e3rl.analysis.figures.style import INK, MUTED, arm_colour, note_below, with_style
from e3rl.analysis.measures.arms import Row, arm_label
from e3rl.analysis.measures.families import BETTER, WORSE, hangs_on_problems

Paper = Mapping[str, Mapping[str, float]]
AVERAGE, FURTHER = "average", "a further set"
WIDTH, ROW = 9.2, 0.17  # inches; of a set
NOTE = (
    "dots: an arm less GRPO on the seeds of one study, points, with its 95 % interval, each by "
    "itself; average: over sets and problems, filled where better or worse after the correction "
    "for all of this page, and with the sets' degrees of freedom alone too; a further set, dashed: "
    "where one more would come out in 95 of 100; diamonds: the paper, 1.5B, which has no budget "
    "alone. pass@16 after 128 steps, pass@1 at equal tokens, easy: problems that the "
    "first policy solves in half or more. No dot: the set lacks the arm, or the endpoint."
)


@with_style
def draw_sets(
    sets: Sequence[Row],
    averages: Sequence[Row],
    names: Sequence[str],
    paper: Paper,
    measures: Sequence[str],
) -> Figure:
    """A column for each arm, a row of panels for each measure; sets from above to below.

    Args:
        sets: differences of each set, by arm and measure.
        averages: over sets, judged.
        names: of all sets.
        paper: what a paper reports, in points, by arm and measure.
        measures: those that are shown.
    """
    arms = list(dict.fromkeys(row["arm"] for row in averages))
    places = {name: place for place, name in enumerate([*names, AVERAGE, FURTHER])}
    height = len(measures) * (0.75 + ROW * len(places))
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(measures), len(arms), squeeze=False, sharex="row", sharey=True)
    for row, measure in zip(grid, measures, strict=True):
        for ax, arm in zip(row, arms, strict=True):
            here = [
                [r for r in rows if (r["arm"], r["measure"]) == (arm, measure)]
                for rows in (sets, averages)
            ]
            draw_panel(ax, here[0], here[1], places)
            claimed = paper.get(arm, {}).get(measure)
            if claimed is not None:
                place = [places[AVERAGE] - 0.45]  # beside the average and not on it
                ax.plot([claimed], place, "D", color=INK, markersize=4, markerfacecolor="white")
            ax.set_title(arm_label(arm), color=arm_colour(arm, arms), fontsize=9)
        row[0].set_ylabel(measure, color=INK)
    for ax in grid[-1]:
        ax.set_xlabel("points, less GRPO")
    note_below(figure, NOTE)
    return figure


def draw_panel(
    ax: Axes, sets: Sequence[Row], averages: Sequence[Row], places: dict[str, int]
) -> None:
    """One arm and measure: a line a set, then the average and what a further set would have."""
    ax.axvline(0, color=INK, linewidth=0.9)
    for row in sets:
        _draw(ax, places[row["set"]], row, "difference", MUTED, 3.0)
    for row in averages:
        colour = arm_colour(row["arm"])
        found = row["verdict"] in (BETTER, WORSE) and not hangs_on_problems(row)
        _draw(ax, places[AVERAGE], row, "difference", colour, 5.5, None if found else "white")
        ends = [100 * row[f"further_{end}"] for end in ("low", "high")]
        ax.plot(ends, [places[FURTHER]] * 2, color=colour, linewidth=1.2, linestyle=(0, (2, 2)))
    labels = [name.removeprefix("carries_").replace("_", " ") for name in places]
    ax.set_yticks(range(len(places)), labels, color=INK, fontsize=7)
    ax.set_ylim(len(places) - 0.4, -0.6)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    ax.grid(False, axis="y")


def _draw(
    ax: Axes, place: int, row: Row, name: str, colour: str, size: float, face: str | None = None
) -> None:
    mean, *ends = (100 * row[f"{name}{end}"] for end in ("", "_low", "_high"))
    ax.plot(ends, [place, place], color=colour, linewidth=1.2)
    ax.plot([mean], [place], "o", color=colour, markersize=size, markerfacecolor=face or colour)

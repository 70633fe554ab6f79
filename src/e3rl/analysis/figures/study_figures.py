"""Figures of single questions: cost to reach an accuracy, length, time, a step disturbance."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from e3rl.analysis.figures.difference_panels import (
    draw_differences,
    metric_differences,
)
from e3rl.analysis.figures.style import (
    INK,
    MUTED,
    SEED_BANDS,
    SHORTER,
    arm_colour,
    draw_empty,
    draw_shared_legend,
    format_cost_axis,
    make_panels,
    name_left_out,
    note_below,
    with_style,
)
from e3rl.analysis.figures.training_panels import draw_arms
from e3rl.analysis.figures.validation_panels import draw_pass_at_1_of_arms
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.axes import AXIS_LABELS
from e3rl.analysis.measures.curves import without_short
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.measures.resources import resource_rows
from e3rl.analysis.measures.step_response import entropy_errors, find_disturbance
from e3rl.analysis.sources.runs import Arms, Run

RATIO, LENGTH = "entropy / target", "rollout/length"
PART_COLOURS = {"rollouts": "#56B4E9", "update": "#D98A7B", "other": "#E9E4D8"}


@with_style
def reaching_figure(
    arms: Arms, control: str, targets: Sequence[float], axis: str = "rollouts"
) -> Figure:
    """Cost at which every arm first reaches each accuracy, with 95 % intervals; a panel each."""
    rows = costs_to_reach(arms, control, targets, axis=axis)
    figure, axes = make_panels(len(targets), columns=3)
    names = list(dict.fromkeys(row["arm"] for row in rows))
    ends = [row[name] for row in rows for name in ("cost_low", "cost", "cost_high")]
    most = max((end for end in ends if end is not None and math.isfinite(end)), default=1.0)
    for ax, target in zip(axes, targets, strict=True):
        ax.set_title(f"pass@1 of {100 * target:g} %")
        for row in (row for row in rows if row["target"] == target):
            _draw_interval(ax, row, names)
        ax.set_yticks(range(len(names)), [arm_label(name) for name in names], color=INK)
        ax.invert_yaxis()
        ax.grid(False, axis="y")
        format_cost_axis(ax, axis)
        ax.set_xlim(0, 1.06 * most)  # one scale, and no mark at its edge
    for ax in axes[1:]:
        ax.set_yticklabels([])
    note_below(
        figure,
        f"{AXIS_LABELS[axis]} until the mean curve is there; 95 % intervals over seeds and "
        "problems; arrows: not within the runs",
    )
    return figure


@with_style
def length_figure(arms: Arms, control: str | None = None, window: int = 9) -> Figure:
    """Mean length of completions in training, and pass@1 in validation.

    With a control, whose curve others may cover: its length, and what the others have less it.
    """
    arms, short = without_short(arms)
    if control is not None and len(arms) > 1:
        return name_left_out(_length_less_control(arms, control, window), short, SHORTER)
    figure, (left, right) = make_panels(2)
    _draw_length(left, arms, window)
    draw_pass_at_1_of_arms(right, arms, "t1")
    bands = f"{SEED_BANDS} (left), 95 % over seeds and problems (right)"
    draw_shared_legend(figure, left, arms, bands)
    return name_left_out(figure, short, SHORTER)


def _length_less_control(arms: Arms, control: str, window: int) -> Figure:
    """The control's length, and what the others have less it, seed by seed."""
    base = arm_label(control)
    figure, (left, right) = make_panels(2)
    _draw_length(left, {control: arms[control]}, window)
    left.set_title(f"Length of completions in training, {base}")
    right.set_title(f"The same, less {base}'s")
    draw_differences(right, metric_differences(arms, control, LENGTH, window), arms)
    right.set_ylabel(left.get_ylabel())
    format_cost_axis(right)
    draw_shared_legend(figure, right, arms, f"{SEED_BANDS}; differences seed by seed")
    return figure


def _draw_length(ax: Axes, arms: Arms, window: int) -> None:
    ax.set_title("Length of completions in training")
    if not draw_arms(ax, arms, LENGTH, window):
        draw_empty(ax, f"no {LENGTH} recorded")
    ax.set_ylabel(f"tokens ({window}-step mean)")


@with_style
def resource_figure(arms: Arms) -> Figure:
    """Seconds of a step by what took them, an arm a bar."""
    rows = [row for row in resource_rows(arms) if row["seconds"] is not None]
    figure, (ax,) = make_panels(1)
    ax.set_title("Seconds of a rollout step")
    if not rows:
        draw_empty(ax, "no time/step_s recorded")
        return figure
    for level, row in enumerate(rows):
        left, each = 0.0, row["seconds"] / row["steps"]
        for part, colour in PART_COLOURS.items():
            share = row[f"{part}_share"] or 0.0  # not recorded
            width = each * share
            ax.barh(level, width, left=left, color=colour, height=0.62, linewidth=0)
            if share > 0.08:
                text = f"{100 * share:.0f} %"
                ax.text(left + width / 2, level, text, ha="center", va="center", fontsize=7.5)
            left += width
    for part, colour in PART_COLOURS.items():
        ax.barh([0], [0], color=colour, label=part)
    ax.set_yticks(range(len(rows)), [arm_label(row["arm"]) for row in rows], color=INK)
    ax.invert_yaxis()
    ax.grid(False, axis="y")
    ax.set_xlabel("seconds, mean over steps and seeds")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure


@with_style
def disturbance_figure(arms: Arms) -> Figure:
    """Entropy over its target and the temperature, around a step disturbance.

    Every step is drawn as it was recorded: a mean over steps would hide how deep the entropy falls.
    """
    figure, (left, right) = make_panels(2)
    left.set_title("Entropy over its target")
    right.set_title("Sampling temperature")
    steps = sorted({find_disturbance(run)[0] for runs in arms.values() for run in runs})
    draw_arms(left, {arm: [_over_target(run) for run in runs] for arm, runs in arms.items()}, RATIO)
    draw_arms(right, arms, "rollout/temperature")
    left.axhline(1.0, color=INK, linewidth=1.0, dashes=(4, 2.5))
    for ax in (left, right):
        for step in steps:
            ax.axvline(step, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        format_cost_axis(ax)
    left.set_ylabel("entropy / target, each step")
    right.set_ylabel("temperature")
    draw_shared_legend(figure, left, arms)
    return figure


def _over_target(run: Run) -> Run:
    """The run with entropy over target as a column, from the first step that has a target."""
    return replace(run, train=entropy_errors(run).add(1).rename(RATIO).reset_index())


def _draw_interval(ax: Axes, row: Mapping[str, Any], names: Sequence[str]) -> None:
    """One arm's cost with its interval; an arrow where it, or a bound, is infinite."""
    place, colour = names.index(row["arm"]), arm_colour(row["arm"], names)
    low, cost, high = row["cost_low"], row["cost"], row["cost_high"]
    if None not in (low, high) and math.isfinite(low) and math.isfinite(high):
        ax.plot([low, high], [place, place], color=colour, linewidth=1.4)
    elif low is not None and math.isfinite(low):
        ax.annotate(
            "",
            xy=(1.0, place),
            xycoords=("axes fraction", "data"),
            xytext=(low, place),
            textcoords="data",
            arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.4},
        )
    if math.isfinite(cost):
        ax.plot([cost], [place], marker="o", markersize=5, color=colour)

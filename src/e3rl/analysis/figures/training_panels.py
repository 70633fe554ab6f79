"""What training did, one panel (an `Axes`) each: entropy, temperature, accuracy, outcomes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from e3rl.analysis.figures.small_multiples import Panels, explain_ranges
from e3rl.analysis.figures.style import (
    INK,
    MUTED,
    OUTCOME_COLOURS,
    arm_colour,
    draw_empty,
    draw_legend_on_top,
    format_cost_axis,
    format_percent_axis,
    name_line,
)
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.curves import annealing_start, seed_band, smooth
from e3rl.analysis.sources.runs import Arms, Run

SAMPLED, TARGET, EXACT_AT_ONE = "policy/entropy", "temperature/target", "policy/entropy_exact_t1"
NATS = "entropy, nats per token"


@dataclass(frozen=True)
class Quantity:
    """A metric of training as figures show it."""

    column: str
    title: str
    label: str  # of the axis
    percent: bool = False
    targets: bool = False  # of the schedule, dashed
    annealing: bool = False  # where it starts, dotted
    beside: str = ""  # title of the panel beside another quantity of the same arm


ENTROPY_AT_TAU = Quantity(
    SAMPLED, "Entropy at the sampling temperature", NATS, targets=True, annealing=True
)
# What is left when every arm samples at T = 1.
ENTROPY_AT_ONE = Quantity(EXACT_AT_ONE, "Entropy of the policy at T = 1", NATS, beside="at T = 1")
# Never smoothed: it is a setting and not a measurement.
TEMPERATURE = Quantity("rollout/temperature", "Sampling temperature", "temperature", annealing=True)
# Unequal budgets do not bias it.
ACCURACY = Quantity(
    "rollout/accuracy",
    "Training accuracy at the sampling temperature",
    "accuracy, mean over prompts",
    percent=True,
)
# No gradient comes from these.
ALL_WRONG = Quantity(
    "rollout/all_wrong", "Prompts with every rollout wrong", "share of prompts", percent=True
)


def draw_arms(ax: Axes, arms: Arms, column: str, window: int = 1, axis: str = "steps") -> bool:
    """Mean line and seed range of one metric for every arm that has it; False where none has."""
    drawn = False
    for arm, runs in arms.items():
        band = seed_band([run.train for run in runs], column, window, axis)
        if band is None:
            continue
        drawn = True
        colour = arm_colour(arm, list(arms))
        if band.n_seeds > 1:
            ax.fill_between(band.x, band.low, band.high, color=colour, alpha=0.16, linewidth=0)
        elif window > 1:
            raw = next(run.train for run in runs if column in run.train)
            x = cost_before(raw, raw["rollout_step"], axis)
            ax.plot(x, raw[column], color=colour, alpha=0.22, linewidth=0.7)
        (line,) = ax.plot(band.x, band.mean, color=colour)
        name_line(ax, line, arm_label(arm), colour)
    format_cost_axis(ax, axis)
    return drawn


def draw_quantity(
    ax: Axes, quantity: Quantity, arms: Arms, window: int = 1, axis: str = "steps"
) -> None:
    """A quantity of every arm in one panel."""
    ax.set_title(quantity.title)
    if not draw_arms(ax, arms, quantity.column, window, axis):
        return draw_empty(ax, f"no {quantity.column} recorded")
    _draw_besides(ax, quantity, arms, axis)
    _label_values(ax, quantity, _window_note(window))


def quantity_panels(quantity: Quantity, arms: Arms, window: int, axis: str) -> Panels:
    """A quantity for a panel per arm, with the arm's own target and start of annealing."""
    bands = {
        arm: seed_band([run.train for run in runs], quantity.column, window, axis)
        for arm, runs in arms.items()
    }

    def behind(ax: Axes, arm: str) -> None:
        _draw_besides(ax, quantity, {arm: arms[arm]}, axis)

    def label(ax: Axes) -> None:
        format_cost_axis(ax, axis, places=4)
        _label_values(ax, quantity, "")

    curves = {arm: band for arm, band in bands.items() if band is not None}
    notes = explain_ranges(curves)
    if quantity.targets and any(TARGET in run.train for runs in arms.values() for run in runs):
        notes.append("dashed: target")
    if quantity.annealing and any(annealing_starts(runs, axis) for runs in arms.values()):
        notes.append("dotted: annealing starts")
    notes += [f"{window}-step means"] if window > 1 else []
    return Panels(curves, label, behind, quantity.beside, notes=notes)


def draw_entropy_of_run(ax: Axes, run: Run, window: int) -> None:
    """One run: sampled entropy at tau, its target, and the exact entropy at T = 1."""
    ax.set_title("Entropy")
    arms = {run.name: [run]}
    if not draw_arms(ax, arms, SAMPLED, window):
        return draw_empty(ax, f"no {SAMPLED} recorded")
    ax.lines[-1].set_label("while sampling")
    if EXACT_AT_ONE in run.train:
        at_one = run.train[["rollout_step", EXACT_AT_ONE]].dropna()
        line = smooth(at_one[EXACT_AT_ONE], window)
        ax.plot(at_one["rollout_step"], line, color=MUTED, linewidth=1.3, label="at T = 1")
    _draw_target(ax, arms)
    _mark_annealing(ax, arms)
    ax.set_ylabel(NATS + _window_note(window))
    draw_legend_on_top(ax)


def draw_outcomes_of_run(ax: Axes, run: Run, window: int) -> None:
    """One run: shares of all-wrong, mixed and all-right prompts, stacked to 100 %."""
    ax.set_title("Outcome of a prompt's rollouts")
    columns = ["rollout/all_wrong", "rollout/mixed", "rollout/all_right"]
    if not set(columns) <= set(run.train):
        return draw_empty(ax, "no prompt outcomes recorded")
    shares = [smooth(run.train[column], window).to_numpy() for column in columns]
    steps = run.train["rollout_step"].to_numpy()
    ax.stackplot(steps, *shares, colors=list(OUTCOME_COLOURS.values()), linewidth=0)
    ax.set_ylim(0, 1)
    format_cost_axis(ax)
    ax.margins(x=0)
    ax.grid(False)
    base = 0.0
    for name, share in zip(OUTCOME_COLOURS, shares, strict=True):
        middle = len(steps) // 2
        height = base + share[middle] / 2
        ax.text(steps[middle], height, name, ha="center", va="center", color=INK, fontsize=8.5)
        base += share[middle]
    format_percent_axis(ax, f"share of prompts{_window_note(window)}")


def _draw_besides(ax: Axes, quantity: Quantity, arms: Arms, axis: str) -> None:
    if quantity.targets:
        _draw_target(ax, arms, axis)
    if quantity.annealing:
        _mark_annealing(ax, arms, axis)


def _label_values(ax: Axes, quantity: Quantity, note: str) -> None:
    if quantity.percent:
        format_percent_axis(ax, quantity.label + note)
    else:
        ax.set_ylabel(quantity.label + note)


def _draw_target(ax: Axes, arms: Arms, axis: str = "steps") -> None:
    """Dashed targets over the curves; one legend entry for all."""
    label: str | None = "target"
    for runs in arms.values():
        band = seed_band([run.train for run in runs], TARGET, axis=axis)
        if band is not None:
            (line,) = ax.plot(band.x, band.mean, color=INK, linewidth=1.0, label=label)
            line.set(dashes=(4, 2.5), zorder=2.5)  # on top of curves that are drawn later
            label = None


def annealing_starts(runs: Sequence[Run], axis: str) -> list[float]:
    """Where on an axis the annealing of some run starts, each place once."""
    found = set()
    for run in runs:
        start = annealing_start(run.train)
        if start is not None:
            found.add(float(cost_before(run.train, [start], axis)[0]))
    return sorted(place for place in found if np.isfinite(place))


def _mark_annealing(ax: Axes, arms: Arms, axis: str = "steps") -> None:
    """A dotted upright line wherever the annealing of some run starts; one legend entry for all."""
    label: str | None = "annealing starts"
    for start in annealing_starts([run for runs in arms.values() for run in runs], axis):
        ax.axvline(start, color=MUTED, linewidth=1.1, dashes=(1, 2), zorder=1, label=label)
        label = None


def _window_note(window: int) -> str:
    return f" ({window}-step mean)" if window > 1 else ""

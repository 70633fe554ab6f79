"""What validation found, one panel (an `Axes`) each: pass@k against k, pass@1 over steps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from e3rl.analysis.figures.style import (
    BASELINE,
    EVALUATION_COLOURS,
    OTHER_COLOURS,
    arm_colour,
    draw_empty,
    draw_legend_on_top,
    format_cost_axis,
    format_percent_axis,
)
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.evaluations import (
    EvaluationResult,
    evaluation_names,
    find_evaluation,
    validation_steps,
)
from e3rl.analysis.sources.runs import Arms, Run

MATCHED = "matched "  # what names of controls at an arm's entropy begin with
NO_VALIDATION = "no validation recorded"


def draw_pass_at_k_of_run(ax: Axes, run: Run) -> None:
    """One run: pass@k by evaluation, dashed at the first and solid at the last validation."""
    ax.set_title("pass@k, before (dashed) and after")
    names = [name for name in evaluation_names({run.name: [run]}) if name != "greedy"]
    for name in names:
        colour = evaluation_colour(name)
        first, last = find_evaluation([run], name, "first"), find_evaluation([run], name, "last")
        if first is not None:
            draw_pass_at_k(ax, first, colour, None, dashed=True)
        if last is not None:
            draw_pass_at_k(ax, last, colour, evaluation_label(last))
    if not names:
        return draw_empty(ax, NO_VALIDATION)
    ax.legend(loc="lower right")


def draw_pass_at_k_of_arms(ax: Axes, arms: Arms, name: str) -> None:
    """Last validation of every arm in one evaluation; the untrained policy dashed.

    Beside a control at an arm's entropy stands the arm at its own temperature.
    """
    ax.set_title(evaluation_title(name))
    starts = [find_evaluation(runs, name, "first") for runs in arms.values()]
    # All arms start from one policy and are validated with one seed.
    start = next((item for item in starts if item is not None), None)
    if start is not None:
        draw_pass_at_k(ax, start, BASELINE, "before training", dashed=True)
    lasts = {arm: find_evaluation(runs, name, "last") for arm, runs in arms.items()}
    if (other := name.removeprefix(MATCHED)) != name and other in arms:
        lasts[other] = find_evaluation(arms[other], "live", "last")
    for arm, last in lasts.items():
        if last is not None:
            draw_pass_at_k(ax, last, arm_colour(arm, list(arms)), arm_label(arm))
    if not any(lasts.values()):
        draw_empty(ax, NO_VALIDATION)


def draw_pass_at_1_of_run(ax: Axes, run: Run) -> None:
    """One run: pass@1 over rollout steps by evaluation, with 95 % intervals."""
    ax.set_title("Validation pass@1")
    names = evaluation_names({run.name: [run]})
    for i, name in enumerate(names):
        label = "T = 1" if name == "t1" else name
        _draw_pass_at_1(ax, [run], name, evaluation_colour(name), label, _dodge(i, len(names)))
    if not names:
        return draw_empty(ax, NO_VALIDATION)
    format_cost_axis(ax)
    format_percent_axis(ax, "pass@1, 95 % interval over problems")
    draw_legend_on_top(ax)


def draw_pass_at_1_of_arms(ax: Axes, arms: Arms, name: str, axis: str = "steps") -> None:
    """pass@1 of every arm over steps or cost in one evaluation, with 95 % intervals."""
    ax.set_title(f"Validation pass@1: {evaluation_title(name)}")
    drawn = [
        _draw_pass_at_1(
            ax, runs, name, arm_colour(arm, list(arms)), arm_label(arm), _dodge(i, len(arms)), axis
        )
        for i, (arm, runs) in enumerate(arms.items())
    ]
    if not any(drawn):
        return draw_empty(ax, NO_VALIDATION)
    format_cost_axis(ax, axis)
    format_percent_axis(ax, "pass@1, 95 % interval over problems")


def draw_pass_at_k(
    ax: Axes, item: EvaluationResult, colour: str, label: str | None, dashed: bool = False
) -> None:
    """pass@k of one evaluation at powers of two, with a band of 95 % intervals unless dashed."""
    ks = item.ks()
    intervals = item.pass_at_k(ks)
    low, high = [i.low for i in intervals], [i.high for i in intervals]
    if not dashed:
        ax.fill_between(ks, low, high, color=colour, alpha=0.14, linewidth=0)
    ax.plot(
        ks,
        [i.mean for i in intervals],
        color=colour,
        label=label,
        linestyle=(0, (4, 2)) if dashed else "-",
        linewidth=1.2 if dashed else 1.7,
        marker=None if dashed else "o",
        markersize=3.5,
    )
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("k, rollouts that one may try")
    format_percent_axis(ax, "pass@k, 95 % interval over problems")


def evaluation_colour(name: str) -> str:
    """Fixed colour of an evaluation by its name; one spare colour for all others."""
    return EVALUATION_COLOURS.get(name, OTHER_COLOURS[0])


def evaluation_label(item: EvaluationResult) -> str:
    """Name and temperature, the temperature once."""
    if item.name == "t1":
        return "T = 1"
    return f"{item.name}, T = {item.temperature:.2f}"


def evaluation_title(name: str) -> str:
    """An evaluation in words, for titles: `at T = 1`, `greedy`."""
    titles = {
        "t1": "at T = 1",
        "greedy": "greedy",
        "live": "at each arm's training temperature",
        "matched": "at the entropy-matched temperature",
    }
    if name.startswith(MATCHED):
        return f"at the entropy of {arm_label(name.removeprefix(MATCHED))}"
    return titles.get(name, name)


def _draw_pass_at_1(
    ax: Axes,
    runs: Sequence[Run],
    name: str,
    colour: str,
    label: str,
    dodge: float,
    axis: str = "steps",
) -> bool:
    """One line with error bars, moved sideways by `dodge` of a validation interval.

    On a cost axis it stands at the mean over seeds.
    """
    steps = validation_steps(runs)
    items = [(step, find_evaluation(runs, name, step)) for step in steps]
    points = [(step, item.pass_at_k([1])[0]) for step, item in items if item is not None]
    if not points:
        return False
    at = [step for step, _ in points]
    spent = np.mean([cost_before(run.train, at, axis) for run in runs], axis=0)
    x = spent + dodge * min(np.diff(spent), default=1)
    mean = np.array([interval.mean for _, interval in points])
    low = np.array([interval.low for _, interval in points])
    high = np.array([interval.high for _, interval in points])
    ax.errorbar(
        x,
        mean,
        yerr=[mean - low, high - mean],
        color=colour,
        label=label,
        marker="o",
        markersize=4,
        elinewidth=1.0,
        capsize=0,
    )
    return True


def _dodge(position: int, count: int) -> float:
    """Sideways place of a line among `count`, in shares of the distance between validations."""
    return 0.0 if count == 1 else (position / (count - 1) - 0.5) * 0.2

"""What validation found, one panel (an `Axes`) each: pass@k against k, pass@1 over steps."""

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from e3rl.analysis.figures.small_multiples import Panels, draw_band
from e3rl.analysis.figures.style import (
    BASELINE,
    EVALUATION_COLOURS,
    OTHER_COLOURS,
    arm_colour,
    draw_empty,
    draw_legend_on_top,
    format_cost_axis,
    format_percent_axis,
    name_line,
)
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.measures.curves import Band, interval_band
from e3rl.analysis.measures.evaluations import (
    EvaluationResult,
    evaluation_names,
    find_evaluation,
    validated_steps,
    validation_steps,
)
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.interval import Interval
from e3rl.statistics.shares import share_interval

INTERVALS = "95 % intervals over seeds and problems (over problems where an arm has one seed)"
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
    """Last validation of every arm in one evaluation; the untrained policy dashed."""
    ax.set_title(evaluation_title(name))
    draw_start(ax, find_start(arms, name))
    lasts = {arm: find_evaluation(runs, name, "last") for arm, runs in arms.items()}
    for arm, last in lasts.items():
        if last is not None:
            draw_pass_at_k(ax, last, arm_colour(arm, list(arms)), arm_label(arm))
    if not any(lasts.values()):
        draw_empty(ax, NO_VALIDATION)


def find_start(arms: Arms, name: str) -> EvaluationResult | None:
    """The untrained policy; all arms start from one and are validated with one seed."""
    starts = (find_evaluation(runs, name, "first") for runs in arms.values())
    return next((item for item in starts if item is not None), None)


def draw_start(ax: Axes, start: EvaluationResult | None) -> None:
    """pass@k of the untrained policy, dashed."""
    if start is not None:
        draw_pass_at_k(ax, start, BASELINE, "before training", dashed=True)


def pass_at_k_panels(arms: Arms, name: str) -> Panels:
    """pass@k at the last validation for a panel per arm, beside the untrained policy; an arm that
    was validated before training alone has none."""
    trained = {
        arm: runs for arm, runs in arms.items() if any(any(validated_steps(run)) for run in runs)
    }
    found = {arm: band_at_k(runs, name) for arm, runs in trained.items()}
    curves = {arm: band for arm, band in found.items() if band is not None}
    start = find_start(arms, name)
    ks: list[float] = max((band.x.tolist() for band in curves.values()), key=len, default=[])

    def behind(ax: Axes, arm: str) -> None:
        draw_start(ax, start)

    def label(ax: Axes) -> None:
        format_k_axis(ax, ks)
        format_percent_axis(ax, "pass@k")

    before = [] if start is None else ["dashed: before training"]
    return Panels(curves, label, behind, dots=True, notes=[*before, INTERVALS])


def pass_at_1_panels(arms: Arms, name: str, axis: str) -> Panels:
    """pass@1 over training for a panel per arm; an arm that was validated before training alone
    has none."""
    found = {arm: points_over_training(runs, name, axis) for arm, runs in arms.items()}
    curves = {arm: band for arm, band in found.items() if band is not None and (band.x > 0).any()}

    def label(ax: Axes) -> None:
        format_cost_axis(ax, axis, places=4)
        format_percent_axis(ax, "pass@1")

    return Panels(curves, label, dots=True, notes=[INTERVALS])


def band_at_k(runs: Sequence[Run], name: str) -> Band | None:
    """pass@k of an arm's last validation at powers of two; None of none."""
    item = find_evaluation(runs, name, "last")
    if item is None:
        return None
    ks = item.ks()
    return interval_band(
        np.array(ks, dtype=np.float64), [interval_at(item, k) for k in ks], len(item.seeds)
    )


def format_k_axis(ax: Axes, ks: Sequence[float]) -> None:
    """Powers of two, every other one named."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [f"{k:g}" if i % 2 == 0 else "" for i, k in enumerate(ks)])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("k, rollouts that one may try")


def draw_pass_at_1_of_run(ax: Axes, run: Run) -> None:
    """One run: pass@1 over rollout steps by evaluation, with 95 % intervals."""
    ax.set_title("Validation pass@1")
    names = evaluation_names({run.name: [run]})
    for name in names:
        label = "T = 1" if name == "t1" else name
        _draw_pass_at_1(ax, [run], name, evaluation_colour(name), label)
    if not names:
        return draw_empty(ax, NO_VALIDATION)
    format_cost_axis(ax)
    format_percent_axis(ax, "pass@1, 95 % interval over problems")
    draw_legend_on_top(ax)


def draw_pass_at_1_of_arms(ax: Axes, arms: Arms, name: str, axis: str = "steps") -> None:
    """pass@1 of every arm over steps or cost in one evaluation, with 95 % intervals."""
    ax.set_title(f"Validation pass@1: {evaluation_title(name)}")
    drawn = [
        _draw_pass_at_1(ax, runs, name, arm_colour(arm, list(arms)), arm_label(arm), axis)
        for arm, runs in arms.items()
    ]
    if not any(drawn):
        return draw_empty(ax, NO_VALIDATION)
    format_cost_axis(ax, axis)
    format_percent_axis(ax, "pass@1, 95 % interval")


def draw_pass_at_k(
    ax: Axes, item: EvaluationResult, colour: str, label: str | None, dashed: bool = False
) -> None:
    """pass@k of one evaluation at powers of two, with a band of 95 % intervals unless dashed."""
    ks = item.ks()
    intervals = [interval_at(item, k) for k in ks]
    if not dashed:
        low, high = [i.low for i in intervals], [i.high for i in intervals]
        ax.fill_between(ks, low, high, color=colour, alpha=0.14, linewidth=0)
    (line,) = ax.plot(
        ks,
        [i.mean for i in intervals],
        color=colour,
        linestyle=(0, (4, 2)) if dashed else "-",
        linewidth=1.2 if dashed else 1.7,
        marker=None if dashed else "o",
        markersize=3.5,
    )
    if label is not None:
        name_line(ax, line, label, colour)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks, [str(k) for k in ks])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("k, rollouts that one may try")
    format_percent_axis(ax, "pass@k, 95 % interval")


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
    }
    return titles.get(name, name)


def interval_at(item: EvaluationResult, k: int) -> Interval:
    """pass@k with its 95 % interval over seeds and problems; over problems where there is one."""
    return share_interval(item.by_seed_and_problem(k))


def points_over_training(runs: Sequence[Run], name: str, axis: str) -> Band | None:
    """Where validations stand on an axis (mean over seeds), and pass@1 there; None of none."""
    return bands_over_training(runs, name, [axis]).get(axis)


def bands_over_training(runs: Sequence[Run], name: str, axes: Iterable[str]) -> dict[str, Band]:
    """`points_over_training` by axis, of the axes on which every seed recorded its cost; seeds that
    were never validated do not count."""
    known = [run for run in runs if validated_steps(run)]
    found = [(step, find_evaluation(known, name, step)) for step in validation_steps(known)]
    items = [(step, item) for step, item in found if item is not None]
    intervals = [interval_at(item, 1) for _, item in items]
    bands = {}
    for axis in axes if items else ():
        costs = [cost_before(run.train, [step for step, _ in items], axis) for run in known]
        x = np.mean(costs, axis=0)
        if np.isfinite(x).all():
            bands[axis] = interval_band(x, intervals, len(known))
    return bands


def _draw_pass_at_1(
    ax: Axes, runs: Sequence[Run], name: str, colour: str, label: str, axis: str = "steps"
) -> bool:
    """One line with a band of intervals, at what its validations truly cost."""
    found = points_over_training(runs, name, axis)
    if found is None:
        return False
    line = draw_band(ax, found, colour, dots=True)
    name_line(ax, line, label, colour)
    return True

"""What it costs to reach an accuracy: rollouts, tokens, steps or seconds, with intervals.

An arm's curve is pass@1 against cost, averaged over its seeds at equal costs and linear between
validations. The cost of a target is where that curve first reaches it. Intervals are over seeds
and problems (`statistics.crossing`), those of ratios to a control paired by both.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.axes import AXIS_UNITS
from e3rl.analysis.measures.comparison import interval_columns
from e3rl.analysis.measures.costs import common_cost, cost_before
from e3rl.analysis.measures.evaluations import pass_table
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.crossing import CostRatio, crossing_intervals, crossing_ratio

Reals = NDArray[np.float64]

POINTS = 193  # of the common cost axis
DIFFERENT = "compare runs of the same data.validation"


@dataclass(frozen=True)
class AccuracyCurves:
    """pass@1 of an arm at the points of a common cost axis."""

    seeds: list[int]
    problems: list[str]
    values: Reals  # (S, POINTS, P)
    start: float  # the latest first validation of a seed: values before it are not known


def costs_to_reach(
    arms: Arms,
    control: str | None,
    targets: Sequence[float],
    name: str = "t1",
    axis: str = "rollouts",
    level: float = 0.95,
    of: Collection[str] | None = None,
) -> list[Row]:
    """Cost at which every arm first reaches each target, and how many times that of the control.

    Args:
        arms: runs by arm, all validated on the same problems, at two costs or more to have a row.
        control: arm whose cost the others' is divided by, None for none.
        targets: pass@1, as shares, in the evaluation `name`.
        axis, level: of the cost, see `axes.AXES`, and coverage of the intervals.
        of: arms to have rows, None for all; others count for the cost that all runs reached.

    Returns:
        dicts with arm, target, seeds, axis, level, and cost and ratio with _low and _high;
        comparison and p of a ratio of 1, for `families.judge_rows`. A cost is infinite where the
        curve stays below the target up to the cost that all runs reached, and so is a bound that
        lies beyond; what does not exist is None, as a ratio whose control never gets there, or
        gets there before the first validation of the arm.

    Raises ValueError for no targets, one that is no share between 0 and 1 or that an arm had when
    it was first validated, into training; a control without this evaluation, runs validated on
    different problems, or a cost not recorded.
    """
    _check_targets(targets)
    points, found = _curves_of_arms(arms, control, name, axis, arms if of is None else of)
    costs = {arm: crossing_intervals(points, x.values, targets, level) for arm, x in found.items()}
    rows = []
    for place, target in enumerate(targets):
        for arm, item in found.items():
            cost, ratio = costs[arm][place], None
            _refuse_late(arm, item, target, cost.mean, axis)
            if control not in (None, arm) and costs[control][place].mean >= item.start:
                ratio = _ratio(item, found[control], points, target, level)
            about: Row = {"arm": arm, "target": target, "axis": axis, "level": level}
            about |= {"seeds": len(item.seeds)} | interval_columns("cost", cost)
            comparison = f"{arm} - {control}: {axis} to {name} of {target:g}"
            rows.append(about | _ratio_columns(comparison, ratio))
    return rows


def _check_targets(targets: Sequence[float]) -> None:
    """Raise ValueError where there are none, or one is no share between 0 and 1."""
    if not targets:
        raise ValueError("targets is empty: give accuracies to reach, as shares")
    if wrong := [target for target in targets if not 0 < target < 1]:
        raise ValueError(
            f"targets: {wrong[0]:g} is no share: give accuracies to reach, such as 0.4"
        )


def _refuse_late(arm: str, item: AccuracyCurves, target: float, cost: float, axis: str) -> None:
    """Raise ValueError where an arm had the target when it was first validated, into training."""
    if cost < item.start:
        raise ValueError(
            f"targets: {arm} had {target:g} when it was first validated, after "
            f"{item.start:,.0f} {AXIS_UNITS[axis]}, so what that cost is not known: give targets "
            "above, or leave the arm out"
        )


def _curves_of_arms(
    arms: Arms, control: str | None, name: str, axis: str, of: Collection[str]
) -> tuple[Reals, dict[str, AccuracyCurves]]:
    """Points up to the cost that all runs reached, and the curves of the arms in `of`, and of the
    control, that have some."""
    budget = common_cost([run for runs in arms.values() for run in runs], axis)
    points = np.linspace(0.0, budget, POINTS)
    mine = {arm: runs for arm, runs in arms.items() if arm == control or arm in of}
    curves = {arm: accuracy_curves(runs, name, axis, points) for arm, runs in mine.items()}
    found = {arm: item for arm, item in curves.items() if item is not None}
    if control is not None and control not in found:
        raise ValueError(f"control={control!r} has no evaluation {name}; there are {list(found)}")
    if len({tuple(item.problems) for item in found.values()}) > 1:
        raise ValueError(f"arms were validated on different problems with {name}: {DIFFERENT}")
    return points, found


def accuracy_curves(
    runs: Sequence[Run], name: str, axis: str, points: Reals
) -> AccuracyCurves | None:
    """pass@1 at the points of a cost axis, for the seeds that were validated at two costs or more.

    None where no seed was.

    Raises ValueError where a validation was on other problems than the first.
    """
    seeds, tables, starts, problems = [], [], [], None
    for run in runs:
        rows = run.problems[run.problems["name"] == name]
        steps = np.sort(rows["rollout_step"].astype(int).unique())
        costs = cost_before(run.train, steps, axis)
        known = ~np.isnan(costs)
        if known.sum() < 2:
            continue
        by_step = [pass_table(rows[rows["rollout_step"] == step], [1])[1] for step in steps[known]]
        problems = problems or sorted(by_step[0].index)
        # Not filled up: a problem that is missing would make the whole curve undefined.
        if any(sorted(column.index) != problems for column in by_step):
            raise ValueError(f"{run.path} was validated on changing problems: {DIFFERENT}")
        values = np.array([column[problems].to_numpy(dtype="float64") for column in by_step])
        tables.append(_interpolate(points, costs[known], values))
        starts.append(float(costs[known][0]))
        seeds.append(run.seed)
    if problems is None:
        return None
    order = np.argsort(seeds)
    ordered = [seeds[i] for i in order]
    return AccuracyCurves(ordered, problems, np.array(tables)[order], max(starts))


def _interpolate(points: Reals, costs: Reals, values: Reals) -> Reals:
    """Columns of `values` (V, P) at the points; constant before the first cost and beyond the
    last."""
    right = np.clip(np.searchsorted(costs, points, "left"), 1, len(costs) - 1)
    span = costs[right] - costs[right - 1]
    share = np.clip((points - costs[right - 1]) / span, 0.0, 1.0)[:, None]
    mixed: Reals = (1 - share) * values[right - 1] + share * values[right]
    return mixed


def _ratio(
    item: AccuracyCurves, control: AccuracyCurves, points: Reals, target: float, level: float
) -> CostRatio | None:
    pairs = len(item.seeds) > 1 and item.seeds == control.seeds
    return crossing_ratio(points, item.values, control.values, target, level, pairs)


def _ratio_columns(comparison: str, found: CostRatio | None) -> Row:
    """A ratio as columns; without bounds there is no p to judge by."""
    known = found is not None and not math.isnan(found.p_value)
    return interval_columns("ratio", None if found is None else found.interval) | {
        "comparison": comparison if known else None,
        "p": found.p_value if found is not None and known else None,
    }

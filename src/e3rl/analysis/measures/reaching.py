"""What it costs to reach an accuracy: rollouts, tokens, steps or seconds, with intervals.

An arm's curve is pass@1 against cost, averaged over its seeds at equal costs and linear between
validations. The cost of a target is where that curve first reaches it. Intervals resample seeds
and problems together, the same ones for all arms, so that ratios to a control are paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.costs import common_cost, cost_before
from e3rl.analysis.measures.evaluations import pass_table
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.seeds import derive_seed

Reals = NDArray[np.float64]

POINTS = 193  # of the common cost axis
DIFFERENT = "compare runs of the same data.validation"


@dataclass(frozen=True)
class AccuracyCurves:
    """pass@1 of an arm at the points of a common cost axis."""

    seeds: list[int]
    problems: list[str]
    values: Reals  # (S, POINTS, P)


def costs_to_reach(
    arms: Arms,
    control: str | None,
    targets: Sequence[float],
    name: str = "t1",
    axis: str = "rollouts",
    level: float = 0.95,
    n_boot: int = 1000,
) -> list[Row]:
    """Cost at which every arm first reaches each target, and how many times that of the control.

    Args:
        arms: runs by arm, all validated on the same problems; arms that were not validated so at
            two costs or more have no row.
        control: arm whose cost the others' is divided by, None for none.
        targets: pass@1, as shares.
        name: evaluation.
        axis: of the cost, see `axes.AXES`.
        level: coverage of the intervals.
        n_boot: replicates.

    Returns:
        dicts with arm, target, seeds, axis, level, and cost and ratio with _low and _high. A cost
        is infinite where the curve stays below the target up to the cost that all runs reached, and
        so is a bound where that happens in a replicate; what does not exist is None. Replicates in
        which neither arm gets there have no ratio, and its bounds are of the others.

    Raises:
        ValueError: no targets, a control without this evaluation, runs validated on different
            problems, or a cost not recorded.
    """
    if not targets:
        raise ValueError("targets is empty: give accuracies to reach, as shares")
    budget = common_cost([run.train for runs in arms.values() for run in runs], axis)
    points = np.linspace(0.0, budget, POINTS)
    arm_curves = {arm: accuracy_curves(runs, name, axis, points) for arm, runs in arms.items()}
    found = {arm: item for arm, item in arm_curves.items() if item is not None}
    if control is not None and control not in found:
        raise ValueError(f"control={control!r} has no evaluation {name}; there are {list(found)}")
    if len({tuple(item.problems) for item in found.values()}) > 1:
        raise ValueError(f"arms were validated on different problems with {name}: {DIFFERENT}")
    curves = {arm: bootstrap_curves(item, n_boot) for arm, item in found.items()}
    rows = []
    for target in targets:
        costs = {arm: cost_at_target(curve, points, target) for arm, curve in curves.items()}
        for arm, cost in costs.items():
            row: Row = {"arm": arm, "target": target, "axis": axis, "level": level}
            row |= {"seeds": len(found[arm].seeds)} | _percentile_columns("cost", cost, level)
            own = control is None or arm == control
            ratio = None if own else _ratio(cost, costs[str(control)])
            rows.append(row | _percentile_columns("ratio", ratio, level))
    return rows


def accuracy_curves(
    runs: Sequence[Run], name: str, axis: str, points: Reals
) -> AccuracyCurves | None:
    """pass@1 at the points of a cost axis, for the seeds that were validated at two costs or more.

    None where no seed was.

    Raises ValueError where a validation was on other problems than the first.
    """
    seeds, tables, problems = [], [], None
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
        seeds.append(run.seed)
    if problems is None:
        return None
    order = np.argsort(seeds)
    return AccuracyCurves([seeds[i] for i in order], problems, np.array(tables)[order])


def bootstrap_curves(item: AccuracyCurves, n_boot: int) -> Reals:
    """(1 + n_boot, POINTS) the mean curve, then bootstrap replicates of it.

    A replicate draws seeds and problems again, each with replacement.
    """
    n_seeds, _, n_problems = item.values.shape
    # Equal numbers of seeds and problems draw alike, which pairs the arms.
    seeds, problems = np.random.default_rng(derive_seed("costs to reach")).spawn(2)
    by_seed = _draw_counts(seeds, n_boot, n_seeds)
    by_problem = _draw_counts(problems, n_boot, n_problems)
    curves: Reals = np.zeros((1 + n_boot, item.values.shape[1]))
    for seed, values in enumerate(item.values):
        curves += (by_problem @ values.T) * by_seed[:, seed : seed + 1]
    curves /= n_seeds * n_problems
    return curves


def cost_at_target(curves: Reals, points: Reals, target: float) -> Reals:
    """(B,) smallest cost at which each curve (B, POINTS) is at the target, inf where none is."""
    reached = curves >= target
    at = reached.argmax(axis=1)
    rows = np.arange(len(curves))
    before = np.maximum(at - 1, 0)
    low, high = curves[rows, before], curves[rows, at]
    rise = np.where(high > low, high - low, 1.0)
    share = np.where(at > 0, np.clip((target - low) / rise, 0.0, 1.0), 0.0)
    cost = points[before] + share * (points[at] - points[before])
    return np.where(reached.any(axis=1), cost, np.inf)


def _interpolate(points: Reals, costs: Reals, values: Reals) -> Reals:
    """Columns of `values` (V, P) at the points; constant beyond the last cost."""
    right = np.clip(np.searchsorted(costs, points, "left"), 1, len(costs) - 1)
    span = costs[right] - costs[right - 1]
    share = np.clip((points - costs[right - 1]) / span, 0.0, 1.0)[:, None]
    mixed: Reals = (1 - share) * values[right - 1] + share * values[right]
    return mixed


def _draw_counts(rng: np.random.Generator, n_boot: int, n_units: int) -> Reals:
    """(1 + n_boot, n_units) how often each unit is drawn; first all of them once."""
    drawn = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_boot)
    return np.concatenate([np.ones((1, n_units)), drawn])


def _ratio(cost: Reals, other: Reals) -> Reals:
    """Cost over the control's; NaN where neither reached the target."""
    both = np.isinf(cost) & np.isinf(other)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: Reals = np.where(both, np.nan, cost / other)
    return ratio


def _percentile_columns(name: str, values: Reals | None, level: float) -> Row:
    """The first value and the central `level` of the others."""
    if values is None or np.isnan(values[0]):
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    drawn = np.sort(values[1:][~np.isnan(values[1:])])
    tail = (1 - level) / 2
    # Order statistics, since interpolating towards an infinite cost has no meaning.
    low, high = (drawn[min(int(q * len(drawn)), len(drawn) - 1)] for q in (tail, 1 - tail))
    return {name: float(values[0]), f"{name}_low": float(low), f"{name}_high": float(high)}

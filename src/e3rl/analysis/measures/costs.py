"""Equal-cost axes: what a run had spent when a number was measured.

A row of step t, of training or validation, speaks of the policy after t updates; what it had cost
to get there is the sum over the steps 0 .. t-1.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from e3rl.analysis.measures.axes import AXES
from e3rl.analysis.sources.runs import Run, kept_with_run


def cost_before(train: pd.DataFrame, steps: ArrayLike, axis: str) -> NDArray[np.float64]:
    """What a run had spent before each of these rollout steps, in units of the axis.

    Args:
        train: rows of training with `rollout_step` and the running sums `cost/<axis>`.
        steps: (S,) rollout steps.
        axis: one of `AXES`.

    Returns:
        (S,) costs, 0 for step 0; NaN where the run did not record the step before.

    Raises:
        ValueError: an axis that does not exist.
    """
    if axis not in AXES:
        raise ValueError(f"axis={axis!r} is none of {', '.join(AXES)}")
    at = np.asarray(steps, dtype=np.float64)
    if axis == "steps":
        return at
    column = f"cost/{axis}"
    if column not in train:
        return np.full(at.shape, np.nan)
    spent = pd.Series(train[column].to_numpy(np.float64), index=train["rollout_step"].to_numpy())
    return np.where(at == 0, 0.0, spent.reindex(at - 1).to_numpy())


def total_cost(train: pd.DataFrame, axis: str) -> float:
    """What a run had spent after its last step; NaN where that is not recorded."""
    if train.empty:
        return float("nan")
    return float(cost_before(train, [int(train["rollout_step"].max()) + 1], axis)[0])


@kept_with_run
def known_cost(run: Run, axis: str) -> float:
    """What a run had spent at the last validation that it has counts of, 0 where there is none; NaN
    where that is not recorded."""
    if run.problems.empty:
        return 0.0
    whole = total_cost(run.train, axis)
    if np.isnan(whole):
        return whole
    spent = cost_before(run.train, run.problems["rollout_step"].unique(), axis)
    return float(np.nanmax(np.minimum(spent, whole), initial=0.0))


def common_cost(runs: Sequence[Run], axis: str) -> float:
    """The cost up to which the accuracy of every run is known that has one: the smallest of
    `known_cost` of those with counts of some validation.

    Raises ValueError where such a run did not record it, or one trained no step, and for no runs.
    """
    if not runs:
        raise ValueError("no run to compare: name arms that have some")
    counted = [run for run in runs if run.train.empty or not run.problems.empty] or list(runs)
    spent = [known_cost(run, axis) for run in counted]
    for run, cost in zip(counted, spent, strict=True):
        if run.train.empty:
            raise ValueError(f"{run.path} has no training step yet: leave it out")
        if not math.isfinite(cost):
            raise ValueError(
                f"{run.path} has not recorded cost/{axis} to its end; compare by steps instead"
            )
    return min(spent)

"""Equal-cost axes: what a run had spent when a number was measured.

A row of step t, of training or validation, speaks of the policy after t updates; what it had cost
to get there is the sum over the steps 0 .. t-1.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from e3rl.analysis.measures.axes import AXES


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
    spent = train.set_index("rollout_step")[column].reindex(at - 1).to_numpy(dtype=np.float64)
    return np.where(at == 0, 0.0, spent)


def total_cost(train: pd.DataFrame, axis: str) -> float:
    """What a run had spent after its last step; NaN where that is not recorded."""
    if train.empty:
        return float("nan")
    return float(cost_before(train, [int(train["rollout_step"].max()) + 1], axis)[0])


def common_cost(trains: Sequence[pd.DataFrame], axis: str) -> float:
    """The cost that every run reached: the smallest of their sums.

    Raises ValueError where a run did not record it.
    """
    spent = [total_cost(train, axis) for train in trains]
    if not spent or not np.isfinite(spent).all():
        raise ValueError(f"not every run has recorded cost/{axis}; compare by steps instead")
    return min(spent)

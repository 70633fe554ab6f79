"""Curves over rollout steps: smoothing within a run, then mean and range over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """One metric of one arm at the S steps that all its seeds have reached."""

    step: NDArray[np.int64]  # (S,)
    mean: Values  # (S,) over seeds
    low: Values  # (S,) smallest seed
    high: Values  # (S,) largest seed
    n_seeds: int


def smooth(values: pd.Series, window: int) -> pd.Series:
    """Centred moving mean over up to `window` steps, fewer at the ends.

    Missing values stay missing and do not count in their neighbours' means.

    Raises ValueError for a window below 1.
    """
    if window < 1:
        raise ValueError(f"window={window}: give a number of steps, 1 for no smoothing")
    if window == 1:
        return values
    means = values.rolling(window, center=True, min_periods=1).mean()
    return means.where(values.notna())


def seed_band(trains: Sequence[pd.DataFrame], column: str, window: int = 1) -> Band | None:
    """Mean and range over seeds of `column` of the train tables; None where no seed has it.

    Each seed is smoothed before the range is taken, so that the band shows how seeds differ and
    not the noise of single steps.
    """
    curves = [
        smooth(train.set_index("rollout_step")[column], window)
        for train in trains
        if column in train
    ]
    if not curves:
        return None
    table = pd.concat(curves, axis="columns", join="inner").dropna(how="all")
    if table.empty:
        return None
    values = table.to_numpy(dtype=np.float64)
    return Band(
        step=table.index.to_numpy(dtype=np.int64),
        mean=np.nanmean(values, axis=1),
        low=np.nanmin(values, axis=1),
        high=np.nanmax(values, axis=1),
        n_seeds=len(curves),
    )


def annealing_start(train: pd.DataFrame) -> int | None:
    """First rollout step after which the target entropy falls, None where it never does.

    The ledger has the factor on the target: 1 until annealing starts, below 1 from then on.
    """
    if "temperature/annealing" not in train:
        return None
    steps = train.loc[train["temperature/annealing"] < 1, "rollout_step"]
    return None if steps.empty else int(steps.iloc[0])


def fitting_window(trains: Sequence[pd.DataFrame], wanted: int = 9) -> int:
    """`wanted`, or an odd number near an eighth of the shortest run where that is smaller."""
    shortest = min((len(train) for train in trains), default=0)
    return max(1, min(wanted, shortest // 8 // 2 * 2 + 1))

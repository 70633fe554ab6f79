"""Curves over steps or cost: smoothing within a run, then mean and range over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.statistics.interval import Interval

Values = NDArray[np.float64]
SHORT = 0.8  # of the steps of its arm's longest run, below which a run is in no curve


@dataclass(frozen=True)
class Band:
    """One metric of one arm at S points of an axis that all its seeds have reached."""

    x: Values  # (S,) rollout steps, or a cost
    mean: Values  # (S,) over seeds
    low: Values  # (S,) smallest seed, or the lower end of an interval
    high: Values  # (S,) largest seed, or the upper end
    n_seeds: int


def interval_band(x: Values, intervals: Sequence[Interval], n_seeds: int) -> Band:
    """Intervals at S points of an axis."""
    mean, low, high = (
        np.array([getattr(each, end) for each in intervals]) for end in ("mean", "low", "high")
    )
    return Band(x, mean, low, high, n_seeds)


def without_short(arms: Arms) -> tuple[dict[str, list[Run]], list[Run]]:
    """The runs that curves of each arm are drawn of, and those left out: they have trained less
    than `SHORT` of the steps of the arm's longest run, and its curves would end where they do."""
    drawn: dict[str, list[Run]] = {}
    short: list[Run] = []
    for arm, runs in arms.items():
        enough = SHORT * max((_steps(run) for run in runs), default=0)
        drawn[arm] = [run for run in runs if _steps(run) >= enough]
        short += [run for run in runs if _steps(run) < enough]
    return drawn, short


def _steps(run: Run) -> int:
    return 0 if run.train.empty else int(run.train["rollout_step"].max()) + 1


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


def seed_band(
    trains: Sequence[pd.DataFrame], column: str, window: int = 1, axis: str = "steps"
) -> Band | None:
    """Mean and range over seeds of `column` of the train tables; None where no seed has it.

    Each seed is smoothed before the range is taken, so that the band shows how seeds differ and
    not the noise of single steps. Seeds have their steps in common, but not what these cost: on
    the axes `rollouts`, `tokens` and `seconds` they are interpolated linearly at common points.
    """
    curves = []
    for train in trains:
        if column in train:
            x = cost_before(train, train["rollout_step"], axis)
            curve = pd.Series(smooth(train[column], window).to_numpy(dtype=np.float64), index=x)
            curves.append(curve[~np.isnan(x)])
    if not curves:
        return None
    aligned = curves if axis == "steps" else _at_common_points(curves)
    table = pd.concat(aligned, axis="columns", join="inner").dropna(how="all")
    if table.empty:
        return None
    values = table.to_numpy(dtype=np.float64)
    return Band(
        x=table.index.to_numpy(dtype=np.float64),
        mean=np.nanmean(values, axis=1),
        low=np.nanmin(values, axis=1),
        high=np.nanmax(values, axis=1),
        n_seeds=len(curves),
    )


def _at_common_points(curves: Sequence[pd.Series]) -> list[pd.Series]:
    """The curves at as many points as the shortest has, over the range that all cover."""
    known = [found for curve in curves if len(found := curve.dropna()) > 1]
    if not known:
        return [pd.Series(dtype="float64")]
    low = max(float(curve.index[0]) for curve in known)
    high = min(float(curve.index[-1]) for curve in known)
    if low > high:
        return [pd.Series(dtype="float64")]
    points = np.linspace(low, high, min(len(curve) for curve in known))
    return [
        pd.Series(np.interp(points, curve.index.to_numpy(), curve.to_numpy()), index=points)
        for curve in known
    ]


def annealing_start(train: pd.DataFrame) -> int | None:
    """First rollout step after which the target entropy falls, None where it never does.

    The ledger has the factor on the target: 1 until annealing starts, below 1 from then on.
    """
    if "temperature/annealing" not in train:
        return None
    steps = train.loc[train["temperature/annealing"] < 1, "rollout_step"]
    return None if steps.empty else int(steps.iloc[0])


def smoothing_window(trains: Sequence[pd.DataFrame], wanted: int = 9) -> int:
    """Steps to smooth over: `wanted`, or about an eighth of the shortest run where that is less.

    Always odd, so that a centred mean is symmetric, unless `wanted` is even.
    """
    shortest = min((len(train) for train in trains), default=0)
    return max(1, min(wanted, shortest // 8 // 2 * 2 + 1))

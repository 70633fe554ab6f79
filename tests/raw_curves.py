"""Costs at which curves of raw ledgers reach a target, as a ratio to a control's; see
`raw_ledgers.py`. Nothing of e3rl is imported."""

import math

import numpy as np

from raw_ledgers import Judged, RawRun, Reals, judge_all, pass_at, quantile, two_sided_p

POINTS = 193


def curve(run: RawRun, axis: str, points: Reals) -> Reals:
    """(X, P) pass@1 at costs, linear between validations, problems by name."""
    found = run.validations["t1"]
    costs = [run.costs[axis][step - 1] if step else 0.0 for step in sorted(found)]
    shares = [
        [pass_at(1, *cell) for _, cell in sorted(found[step].items())] for step in sorted(found)
    ]
    by_problem = np.array(shares).T
    return np.array([np.interp(points, costs, column) for column in by_problem]).T


def cost_ratio(mine: Reals, other: Reals, points: Reals, target: float) -> Judged | None:
    """Of curves (S, X, P), seeds paired. A trial cost is refused where the distance of the curve
    from the target, less the control's at its own cost, by slopes, is told from 0."""
    means = mine.mean(axis=(0, 2)), other.mean(axis=(0, 2))
    cost, base = (crossing(points, mean - target) for mean in means)
    if math.isinf(base) or base == 0:
        return None
    weight = 1.0
    if 0 < cost < math.inf:
        weight = slope(points, means[0], cost) / slope(points, means[1], base)
    there = min(max(weight, 0.25), 4.0) * (value_at(points, other, base) - target)
    tables = [mine[:, i] - target - there for i in range(len(points))]
    low, high = (first_refused(points, tables, side) for side in (1, -1))
    apart = value_at(points, mine, base) - target - there
    p = judge_all(apart).p if apart.any() else 1.0  # alike up to there
    return Judged(cost / base, p, low / base, high / base)


def crossing(points: Reals, above: Reals) -> float:
    """Where a curve first is at 0 or above it."""
    at = next((i for i, height in enumerate(above) if height >= 0), None)
    if at is None:
        return math.inf
    if at == 0:
        return float(points[0])
    share = above[at - 1] / (above[at - 1] - above[at])
    return float((1 - share) * points[at - 1] + share * points[at])


def first_refused(points: Reals, tables: list[Reals], side: int) -> float:
    """Where the upper bound (side 1) or the lower one (-1) of the mean first is at 0."""
    found = list(map(mean_error_df, tables))
    at = next((i for i, each in enumerate(found) if bound_is_above(*each, side)), None)
    if at is None:
        return math.inf
    ends = found[max(at - 1, 0) : at + 1]
    bounds = [mean + side * quantile(df) * error for mean, error, df in ends]
    return crossing(points[max(at - 1, 0) : at + 1], np.array(bounds))


def bound_is_above(mean: float, error: float, df: float, side: int) -> bool:
    """By a test of the mean, which needs no quantile."""
    if not error:
        return mean >= 0
    t = abs(mean) / error
    refused = t > 12.8 or (t > 1.9 and two_sided_p(t, df) < 0.05)  # quantiles are 1.96 to 12.71
    return bool(mean >= 0 and (side == 1 or refused)) or (side == 1 and not refused)


def mean_error_df(table: Reals) -> tuple[float, float, float]:
    """Of the mean of (S, P), in the two-way layout of `raw_ledgers.judge_all`."""
    n_seeds, n_problems = table.shape
    mean = table.mean()
    seeds, problems = table.mean(axis=1) - mean, table.mean(axis=0) - mean
    rest = table - mean - seeds[:, None] - problems
    dfs = np.array([n_seeds - 1, n_problems - 1, (n_seeds - 1) * (n_problems - 1)])
    sums = n_problems * (seeds @ seeds), n_seeds * (problems @ problems), (rest * rest).sum()
    squares = np.array(sums) / dfs
    variance = squares[0] + max(squares[1] - squares[2], 0.0)
    spread = float((squares**2 / dfs).sum())
    df = max(1.0, variance**2 / spread) if spread else 1.0
    return float(mean), math.sqrt(variance / table.size), float(df)


def slope(points: Reals, mean: Reals, cost: float) -> float:
    """Rise by a relative rise of the cost, of the piece of the curve that ends there."""
    right = next(i for i in range(1, len(points)) if cost <= points[i] or i == len(points) - 1)
    rise = (mean[right] - mean[right - 1]) / (points[right] - points[right - 1])
    return max(float(rise), 1e-12) * cost


def value_at(points: Reals, curves: Reals, cost: float) -> Reals:
    """(S, P) of (S, X, P)."""
    right = next(i for i in range(1, len(points)) if cost <= points[i] or i == len(points) - 1)
    share = (cost - points[right - 1]) / (points[right] - points[right - 1])
    return (1 - share) * curves[:, right - 1] + share * curves[:, right]

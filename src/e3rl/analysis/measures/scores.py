"""`Scores`: pass@k of one arm by training seed and problem, at a cost that all arms reached."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.arms import AND
from e3rl.analysis.measures.costs import cost_before, known_cost
from e3rl.analysis.measures.evaluations import MEASURED, NO_COMMON_PROBLEM, pass_table
from e3rl.analysis.sources.runs import Run, kept_with_run

SHARED = 0.25  # of the problems of one seed, or of one arm, at least, for numbers over those of all


@dataclass(frozen=True)
class Scores:
    """One measure of an arm in one evaluation. Entropy is in nats per token."""

    arm: str
    name: str  # evaluation, such as t1
    measure: str  # such as pass@16
    temperature: float
    entropy: float
    table: pd.DataFrame  # (S, P), a row per training seed, a column per problem
    sources: dict[str, str]  # family of each problem, where recorded
    spent: float | None = None  # mean cost of the last validation, where that is what was taken
    start: float | None = None  # cost of the first validation, where the mean is over a run

    @property
    def n_seeds(self) -> int:
        """Training seeds: rows of the table."""
        return len(self.table)

    def by_source(self) -> NDArray[np.float64]:
        """(S, K) mean over the problems of each family: the tasks of IQM and improvement."""
        families = [self.sources.get(problem, "") for problem in self.table.columns]
        means = self.table.T.groupby(families).mean().T
        return np.asarray(means, dtype=np.float64)


def measure_name(k: int, whole: bool) -> str:
    """What tables call pass@k, or its mean over the whole run."""
    return f"mean pass@{k}" if whole else f"pass@{k}"


def scores_at(
    runs: Sequence[Run], name: str, k: int, axis: str, budget: float, whole: bool = False
) -> Scores | None:
    """pass@k of every seed and problem when each run had spent `budget`.

    Between two validations a problem's pass@k is interpolated linearly in cost. Where not every
    validation had k rollouts, the last one is taken as it is, whatever it had cost: a line from
    the first to the last would run below a curve that flattens.

    Args:
        runs, name, k: seeds of one arm, evaluation, and of pass@k.
        axis: of the budget, see `axes.AXES`.
        budget: cost at which to compare; infinite: the last validation's.
        whole: the mean over the costs from the first validation to `budget` (the area under the
            curve) in place of the value at `budget`.

    Returns:
        None where no seed has the evaluation with at least k rollouts in its last validation, or
        where `whole` is asked for and there is a single such validation, or seeds have their first
        one at unlike costs. A seed that had its first one beyond `budget` does not count, nor one
        that had its last one before `budget` and trained on.

    Raises:
        ValueError: seeds without a common problem, or with fewer than `SHARED` of those that one of
            them has.
    """
    rows, kept, spent, starts, sources = [], [], [], set[float](), dict[str, str]()
    for run in runs:
        costs, table = _scores_by_cost(run, name, k, axis)
        if len(costs) < 1 + whole or (len(costs) > 1 and not _covers(run, costs, axis, budget)):
            continue
        starts.add(float(costs[0]))
        if len(costs) == 1 or math.isinf(budget):
            spent.append(float(costs[-1]))
        one = len(costs) == 1
        rows.append(table.iloc[-1] if one else _interpolate_at(costs, table, budget, whole))
        kept.append(run)
        sources |= run.sources
    if not rows or (whole and len(starts) > 1):
        return None
    temperature, entropy = np.mean([_last_sampling(run, name) for run in kept], axis=0)
    about = runs[0].name, name, measure_name(k, whole), float(temperature), float(entropy)
    cost = float(np.mean(spent)) if spent else None
    joined = _join_seeds(kept, rows, name)
    return Scores(*about, joined, sources, cost, starts.pop() if whole else None)


def _covers(run: Run, costs: NDArray[np.float64], axis: str, budget: float) -> bool:
    """Whether validations at these costs tell of the budget, or of the end of a shorter run."""
    if math.isinf(budget):
        return True
    return bool(costs[0] <= budget and costs[-1] >= min(budget, known_cost(run, axis)))


def _join_seeds(runs: Sequence[Run], rows: Sequence[pd.Series], name: str) -> pd.DataFrame:
    """(S, P) rows of runs by seed, on the problems that all have.

    Raises ValueError where these are none, or too few.
    """
    joined = pd.concat(rows, axis="columns", join="inner").T
    if joined.empty:
        raise ValueError(f"seeds of {runs[0].name}/{name} {NO_COMMON_PROBLEM} ({_places(runs)})")
    _require_shared(runs, rows, joined.shape[1], name)
    return joined.set_axis([run.seed for run in runs], axis="index")


def _require_shared(runs: Sequence[Run], rows: Sequence[pd.Series], n: int, name: str) -> None:
    """Raise ValueError where the `n` problems that all seeds have are too few; it names the run
    that has fewest in common with the others."""
    most = max(len(row) for row in rows)
    if n >= SHARED * most:
        return
    alike = [sum(len(row.index.intersection(other.index)) for other in rows) for row in rows]
    odd = runs[int(np.argmin(alike))].path
    raise ValueError(
        f"{odd} was validated with {name} on other problems than other seeds of its arm: all have "
        f"{n} of {most}; leave it out, or give it the same data.validation"
    )


def _places(runs: Sequence[Run]) -> str:
    return ", ".join(str(run.path) for run in runs)


def mean_of_arms(several: Sequence[Scores]) -> Scores:
    """The mean of several arms in one measure and evaluation, seed by seed and problem by problem.

    Raises ValueError as `shared_tables`.
    """
    name = AND.join(each.arm for each in several)
    tables = shared_tables(several, f"the mean of {name}")
    spent = [each.spent for each in several if each.spent is not None]
    return replace(
        several[0],
        arm=name,
        temperature=float(np.mean([each.temperature for each in several])),
        entropy=float(np.mean([each.entropy for each in several])),
        table=sum(tables[1:], tables[0]) / len(tables),
        sources={problem: of for each in several for problem, of in each.sources.items()},
        spent=float(np.mean(spent)) if len(spent) == len(several) else None,
    )


def shared_tables(several: Sequence[Scores], what: str) -> list[pd.DataFrame]:
    """The tables of several arms on the problems that all have, seeds in order.

    Raises ValueError, which begins with `what` they are for, where arms have other seeds, or no
    common problem.
    """
    tables = [each.table.sort_index() for each in several]
    common = tables[0].columns
    for table in tables[1:]:
        common = common.intersection(table.columns, sort=False)
    seeds_of = [table.index.tolist() for table in tables]
    if any(each != seeds_of[0] for each in seeds_of) or not tables[0].index.is_unique:
        seeds = "; ".join(
            f"{each.arm} {', '.join(map(str, own))}"
            for each, own in zip(several, seeds_of, strict=True)
        )
        raise ValueError(f"{what}: arms must have run with the same seeds: {seeds}")
    if common.empty:
        raise ValueError(f"{what}: the arms were validated on different problems")
    return [table[common] for table in tables]


@kept_with_run
def _scores_by_cost(
    run: Run, name: str, k: int, axis: str
) -> tuple[NDArray[np.float64], pd.DataFrame]:
    """Costs (V,) of a run's validations `name`, ascending, and pass@k (V, P) at them; of the last
    one alone where others had fewer than k rollouts, and of none where it had itself."""
    steps = sorted(step for evaluation, step in run.counts if evaluation == name)
    fewest = [run.counts[name, step]["n"].min() for step in steps]
    only_before = len(steps) == 1 and steps[0] < max(step for _, step in run.counts)
    if not steps or fewest[-1] < k or only_before:
        return np.empty(0), pd.DataFrame()
    steps = steps[-1 if min(fewest) < k else 0 :]
    tables = [pass_table(run.counts[name, step], [k])[k] for step in steps]
    costs = cost_before(run.train, steps, axis)
    table = pd.concat(tables, axis="columns", join="inner").T
    known = ~np.isnan(costs)
    return costs[known], table[known]


def _interpolate_at(
    costs: NDArray[np.float64], table: pd.DataFrame, budget: float, whole: bool
) -> pd.Series:
    """Each problem's value at the budget, or its mean over the costs up to there."""
    values = table.to_numpy(dtype=np.float64)
    end = min(max(budget, costs[0]), costs[-1])
    last = values[-1]
    if end < costs[-1]:
        right = int(np.searchsorted(costs, end, side="right"))  # costs[right - 1] <= end
        slope = (values[right] - values[right - 1]) / (costs[right] - costs[right - 1])
        last = values[right - 1] + slope * (end - costs[right - 1])
    if not whole or end == costs[0]:
        return pd.Series(last, index=table.columns)
    before = costs < end
    x, y = np.append(costs[before], end), np.vstack([values[before], last])
    return pd.Series(np.trapezoid(y, x, axis=0) / (end - costs[0]), index=table.columns)


@kept_with_run
def _last_sampling(run: Run, name: str) -> list[float]:
    """Temperature and entropy of the last validation `name`."""
    rows = run.evaluations[run.evaluations["name"] == name]
    return [float(value) for value in rows.sort_values("rollout_step").iloc[-1][list(MEASURED)]]

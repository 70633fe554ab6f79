"""How many seeds and problems a study needs, from the variances of one that was run."""

from collections.abc import Sequence

import numpy as np

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Arms
from e3rl.statistics.means import limit_by_seeds, mean_over_seeds_and_problems
from e3rl.statistics.power import (
    detectable_difference,
    problems_needed,
    seed_variance_interval,
    seeds_needed,
    variance_components,
)


def power_table(
    arms: Arms,
    control: str,
    differences: Sequence[float] = (0.01, 0.02, 0.05),
    name: str = "t1",
    k: int = 1,
    axis: str = "tokens",
) -> list[Row]:
    """Detectable differences of pass@k to the control, and what smaller ones would need.

    Args:
        arms: runs by arm; those with fewer than two seeds in common with the control have no row.
        control: arm that the others are compared with.
        differences: in shares, 0.01 being a point.
        name: evaluation.
        k: of pass@k.
        axis: of the equal cost.

    Returns:
        dicts with arm, seeds, problems; variances of the paired difference, seed_variance (with
        _low and _high), problem_variance and rest_variance, which may be estimated below 0;
        detectable, the difference that one comparison finds with 80 % power at the 5 % level, with
        the test that `comparison` uses; and for each wanted difference D seeds_for_D with these
        problems and problems_for_D with these seeds, None where none suffice.

    Raises:
        ValueError: a control without this evaluation, or a cost that some run did not record.
    """
    cost = common_cost([run for runs in arms.values() for run in runs], axis)
    scored = {arm: scores_at(runs, name, k, axis, cost) for arm, runs in arms.items()}
    base = scored.get(control)
    if base is None:
        raise ValueError(f"control={control!r} has no evaluation {name} with {k} rollouts")
    rows: list[Row] = []
    for arm, item in scored.items():
        if item is not None and arm != control:
            gaps = (item.table - base.table).dropna(how="all").dropna(axis="columns")
            if min(gaps.shape) > 1:
                rows.append(
                    {"arm": arm, **_needed_sizes(gaps.to_numpy(dtype=np.float64), differences)}
                )
    return rows


def _needed_sizes(table: np.ndarray, differences: Sequence[float]) -> Row:
    parts, seeds = variance_components(table), seed_variance_interval(table)
    n_seeds, n_problems = table.shape
    row: Row = {
        "seeds": n_seeds,
        "problems": n_problems,
        "seed_variance": seeds.mean,
        "seed_variance_low": seeds.low,
        "seed_variance_high": seeds.high,
        "problem_variance": parts.problem,
        "rest_variance": parts.residual,
        "detectable": detectable_difference(
            limit_by_seeds(mean_over_seeds_and_problems(table), n_seeds)
        ),
    }
    for wanted in differences:
        row[f"seeds_for_{wanted:g}"] = seeds_needed(parts, wanted, n_problems)
        row[f"problems_for_{wanted:g}"] = problems_needed(parts, wanted, n_seeds)
    return row

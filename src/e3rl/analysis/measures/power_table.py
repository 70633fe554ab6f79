"""How many seeds and problems a study needs, from the variances of one that was run."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Arms
from e3rl.statistics.power import (
    detectable_difference,
    problems_needed,
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
) -> pd.DataFrame:
    """Detectable differences of pass@k to the control, and what smaller ones would need.

    Args:
        arms: runs by arm; those with fewer than two seeds in common with the control have no row.
        control: arm that the others are compared with.
        differences: in shares, 0.01 being a point.
        name: evaluation.
        k: of pass@k.
        axis: of the equal cost.

    Returns:
        a row per arm: seeds, problems, standard deviations of the paired difference between seeds,
        between problems and of the rest, the detectable difference (80 % power, 5 % level), and
        for each wanted difference the seeds needed with these problems and the problems needed
        with these seeds; NaN where none suffice.

    Raises:
        ValueError: a control without this evaluation, or a cost that some run did not record.
    """
    cost = common_cost([run.train for runs in arms.values() for run in runs], axis)
    scored = {arm: scores_at(runs, name, k, axis, cost) for arm, runs in arms.items()}
    base = scored.get(control)
    if base is None:
        raise ValueError(f"control={control!r} has no evaluation {name} with {k} rollouts")
    rows = []
    for arm, item in scored.items():
        if item is not None and arm != control:
            gaps = (item.table - base.table).dropna(how="all").dropna(axis="columns")
            if min(gaps.shape) > 1:
                rows.append(
                    {"arm": arm, **_needed_sizes(gaps.to_numpy(dtype=np.float64), differences)}
                )
    return pd.DataFrame(rows)


def _needed_sizes(table: np.ndarray, differences: Sequence[float]) -> dict[str, float]:
    parts = variance_components(table)
    n_seeds, n_problems = table.shape
    row = {
        "seeds": n_seeds,
        "problems": n_problems,
        "sd seed": parts.seed**0.5,
        "sd problem": parts.problem**0.5,
        "sd rest": parts.residual**0.5,
        "detectable": detectable_difference(parts, n_seeds, n_problems),
    }
    for wanted in differences:
        seeds, problems = (
            seeds_needed(parts, wanted, n_problems),
            problems_needed(parts, wanted, n_seeds),
        )
        row[f"seeds for {wanted:g}"] = float("nan") if seeds is None else seeds
        row[f"problems for {wanted:g}"] = float("nan") if problems is None else problems
    return row

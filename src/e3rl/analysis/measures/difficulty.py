"""Rollouts per prompt against how hard the prompt is."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from e3rl.analysis.measures.curves import Band
from e3rl.analysis.sources.runs import Run
from e3rl.statistics.ranks import mid_ranks

BINS = 8


def budget_by_difficulty(runs: Sequence[Run], bins: int = BINS) -> Band | None:
    """Mean rollouts per prompt in the last epoch, by difficulty rank (0 = easiest, 1 = hardest).

    Ranks are those that the budget rule had at the time; for an arm whose rule has none, the
    prompt's rank by its share of right rollouts over the whole run.

    Args:
        runs: seeds of one arm.
        bins: equal intervals of the rank; those without a prompt in some seed are left out.

    Returns:
        mean and range over seeds at the middle of each interval; None where no seed has recorded
        its prompts.
    """
    known = [run for run in runs if not run.prompts.empty]
    if not known:
        return None
    table = pd.concat([_by_bin(run, bins) for run in known], axis="columns", join="inner")
    if table.empty:
        return None
    values = table.to_numpy(dtype=np.float64)
    return Band(
        x=(table.index.to_numpy(dtype=np.float64) + 0.5) / bins,
        mean=values.mean(axis=1),
        low=values.min(axis=1),
        high=values.max(axis=1),
        n_seeds=len(known),
    )


def _by_bin(run: Run, bins: int) -> pd.Series:
    rows = run.prompts[run.prompts["epoch"] == run.prompts["epoch"].max()]
    ranks = rows["rank"].to_numpy(dtype=np.float64)
    if np.isnan(ranks).all():
        ranks = _own_ranks(run, rows["prompt_id"])
    seen = ~np.isnan(ranks)
    bin_of = np.minimum((ranks[seen] * bins).astype(int), bins - 1)
    means: pd.Series = rows["n"][seen].astype("float64").groupby(bin_of).mean()
    return means.sort_index()


def _own_ranks(run: Run, prompts: pd.Series) -> NDArray[np.float64]:
    sums = run.prompts.groupby("prompt_id")[["n", "correct"]].sum().astype("float64")
    shares = sums["correct"] / sums["n"].where(sums["n"] > 0)
    ranks = pd.Series(mid_ranks(shares), index=sums.index)
    return np.asarray(prompts.map(ranks), dtype=np.float64)

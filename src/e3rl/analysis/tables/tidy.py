"""All runs in one tidy table: a row per run, kind and rollout step, equal-cost axes in front."""

from collections.abc import Sequence

import pandas as pd

from e3rl.analysis.measures.axes import AXES
from e3rl.analysis.measures.costs import cost_before
from e3rl.analysis.sources.runs import Run

FIRST = ("arm", "seed", "run", "kind", "epoch", *AXES)


def tidy_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Rows of training and validation of all runs, ready for `groupby` or a plotting library.

    Returns:
        a table with the columns arm, seed, run (its path), kind (train or validation), epoch,
        steps, rollouts, tokens and seconds (spent before what the row measures, see `costs`), and
        one per metric; NaN where a run or a kind does not have it.

    Raises:
        ValueError: no runs.
    """
    if not runs:
        raise ValueError("a tidy table needs at least one run")
    parts = [
        _with_axes(run, kind, rows)
        for run in runs
        for kind, rows in (("train", run.train), ("validation", run.validation))
        if not rows.empty
    ]
    table = pd.concat(parts, ignore_index=True)
    return table[[*FIRST, *(name for name in table if name not in FIRST)]]


def _with_axes(run: Run, kind: str, rows: pd.DataFrame) -> pd.DataFrame:
    axes = {axis: cost_before(run.train, rows["rollout_step"], axis) for axis in AXES}
    facts = {"arm": run.name, "seed": run.seed, "run": str(run.path), "kind": kind}
    epoch = {} if "epoch" in rows else {"epoch": float("nan")}
    return rows.drop(columns="rollout_step").assign(**facts, **epoch, **axes)

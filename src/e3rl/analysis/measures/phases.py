"""Where the time of runs went: seconds of every phase, step by step and in all."""

from collections.abc import Sequence

import pandas as pd

from e3rl.analysis.sources.runs import Run
from e3rl.ledger.phases import PHASES, phase_column

SINCE_LAST_ROW = "seconds_since_last_row"  # of the ledger, by phase, in a run's summary
OUTSIDE_STEPS = ("start", "engine", "finish")  # phases that no rollout step is to blame for
BARS = 48  # of a run at most; a bar of many steps is their mean


def phase_seconds(run: Run) -> dict[str, float]:
    """Seconds of each phase over the run, in the order of `PHASES`; empty where none is recorded.

    They add up to the run's duration, from the start of its process to its summary. Of a run that
    was killed and went on, what came after the checkpoint does not count, and the start counts
    once for every process.
    """
    total = dict.fromkeys(PHASES, 0.0)
    tables = [_by_phase(rows) for rows in (run.train, run.validation)]
    if not any(table.shape[1] for table in tables):
        return {}  # an archive without them; the summary's few seconds would stand for the run
    for table in tables:
        for phase, seconds in table.sum().items():
            total[str(phase)] += float(seconds)
    for phase in PHASES:
        late = (run.summary or {}).get(SINCE_LAST_ROW, {})
        total[phase] += float(late.get(phase_column(phase), 0.0))
    return {phase: seconds for phase, seconds in total.items() if seconds > 0}


def mean_phase_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Means over the runs that record phases; empty where none does."""
    table = pd.DataFrame([found for run in runs if (found := phase_seconds(run))])
    means = table.fillna(0.0).mean()
    return {phase: float(means[phase]) for phase in PHASES if phase in means}


def phases_by_step(run: Run) -> pd.DataFrame:
    """Seconds per step and phase: a row for each of at most `BARS` stretches of equal length.

    Columns are the phases that belong to steps, in the order of `PHASES`, and the index is the
    first rollout step of a stretch. A validation's seconds belong to the step before it.
    """
    trained = _by_phase(run.train).set_index(run.train["rollout_step"])
    validated = _by_phase(run.validation).set_index(run.validation["rollout_step"] - 1)
    both = pd.concat([trained, validated[validated.index >= 0]]).fillna(0.0)
    kept = [name for name in PHASES if name in both and name not in OUTSIDE_STEPS]
    if run.train.empty or not kept:
        return pd.DataFrame()
    width = -(-len(run.train) // BARS)
    first = int(run.train["rollout_step"].min())
    stretch = (both.index.to_numpy() - first) // width * width + first
    sums = both[kept].groupby(stretch).sum()
    counts = pd.Series(1, index=trained.index)
    counts = counts.groupby((trained.index.to_numpy() - first) // width * width + first).sum()
    return sums.div(counts, axis=0)


def _by_phase(rows: pd.DataFrame) -> pd.DataFrame:
    """The columns of phases, by their names."""
    found = {phase: phase_column(phase) for phase in PHASES}
    kept = {phase: name for phase, name in found.items() if name in rows}
    return pd.DataFrame(
        {phase: rows[name].fillna(0.0) for phase, name in kept.items()}, index=rows.index
    )

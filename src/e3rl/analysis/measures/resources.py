"""What runs took of the machine: tokens, memory, and seconds, of every phase and in all."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.measures.curves import without_short
from e3rl.analysis.sources.runs import Arms, Run
from e3rl.ledger.phases import PHASES, phase_column

SINCE_LAST_ROW = "seconds_since_last_row"  # of the ledger, by phase, in a run's summary
OUTSIDE_STEPS = ("start", "engine", "finish")  # phases that no rollout step is to blame for
BARS = 48  # of a run at most; a bar of many steps is their mean
PARTS = {  # of a step's seconds
    "rollouts": "time/rollout_s",
    "update": "time/update_s",
}
PEAK = ("resources/memory_gib", "resources/gpu_memory_gib")


def resource_rows(arms: Arms) -> list[Row]:
    """A row per arm, each number the mean over its seeds, without those of far fewer steps than
    the arm's longest run (`curves.without_short`).

    Returns:
        dicts with arm, seeds, steps, rollouts, tokens, seconds and cpu_seconds (of training,
        validation apart), tokens_per_second, memory_gib and gpu_memory_gib (largest that a
        process had), and the shares of the seconds: rollouts_share, update_share (the optimiser's:
        forward and backward passes and the step) and other_share. Rollouts that are sampled during
        an update count in both shares, which then leave nothing to other_share. None where not
        recorded.
    """
    drawn, _ = without_short(arms)
    return [_row(arm, runs) for arm, runs in drawn.items()]


def _row(arm: str, runs: Sequence[Run]) -> Row:
    table = pd.DataFrame([_measure_run(run.train) for run in runs])
    means = {name: float(column.mean()) for name, column in table.items()}
    known = {name: None if pd.isna(mean) else mean for name, mean in means.items()}
    return {"arm": arm, "seeds": len(runs), **known}


def _measure_run(train: pd.DataFrame) -> dict[str, float]:
    def total(column: str) -> float:
        return float(train[column].sum()) if column in train else float("nan")

    def peak(column: str) -> float:
        return float(train[column].max()) if column in train else float("nan")

    seconds = total("time/step_s")
    shares = {f"{name}_share": total(column) / seconds for name, column in PARTS.items()}
    return {
        "steps": float(len(train)),
        "rollouts": total("rollout/n"),
        "tokens": total("rollout/tokens"),
        "seconds": seconds,
        "cpu_seconds": total("resources/cpu_s"),
        "tokens_per_second": total("rollout/tokens") / seconds,
        "memory_gib": peak(PEAK[0]),
        "gpu_memory_gib": peak(PEAK[1]),
        **shares,
        "other_share": float(np.maximum(0.0, 1 - sum(shares.values()))),
    }


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

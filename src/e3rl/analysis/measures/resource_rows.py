"""What runs took of the machine: tokens, seconds, memory, and which part took the time."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.sources.runs import Arms, Run

PARTS = {  # of a step's seconds
    "rollouts": "time/rollout_s",
    "update": "time/update_s",
}
PEAK = ("resources/memory_gib", "resources/gpu_memory_gib")


def resource_rows(arms: Arms) -> list[Row]:
    """A row per arm, each number the mean over its seeds.

    Returns:
        dicts with arm, seeds, steps, rollouts, tokens, seconds and cpu_seconds (of training,
        validation apart), tokens_per_second, memory_gib and gpu_memory_gib (largest that a
        process had), and the shares of the seconds: rollouts_share, update_share (the optimiser's:
        forward and backward passes and the step) and other_share. Rollouts that are sampled during
        an update count in both shares, which then leave nothing to other_share. None where not
        recorded.
    """
    return [_row(arm, runs) for arm, runs in arms.items()]


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

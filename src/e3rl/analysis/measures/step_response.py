"""How a temperature rule answers a step disturbance (`callbacks.disturbance`)."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from e3rl.analysis.measures.arms import Row
from e3rl.analysis.sources.runs import Arms, Run

ENTROPY, TARGET, TAU = "policy/entropy", "temperature/target", "rollout/temperature"
BAND = 0.05  # relative error within which a loop counts as settled: one batch is 3-5 % noisy
WINDOW = 5  # steps that are averaged, for the same reason
LATE = 16  # steps before the disturbance, and last ones in which what remains is steady


def response_rows(arms: Arms, last: int = LATE) -> list[Row]:
    """A row per arm whose runs were disturbed, each number the mean over its seeds.

    Args:
        arms: runs by arm.
        last: steps at the end in which what remains is steady.

    With e = entropy/target - 1 of each step:

    Returns:
        dicts with arm, seeds; before: root mean square of e over the 16 steps before the
        disturbance; dip: the e of largest size in the five steps after it; settling: steps until
        the first of those 5 from which on their mean e stays within 5 % (the steps that were left
        where it never does);
        steady: mean e of the `last` steps; noise: standard deviation of e there; rise: the
        temperature of these steps over that before the disturbance, and wanted: the factor by
        which the logits were multiplied; settling_by_seed.

    Raises:
        ValueError: a run without the disturbance, one that did not record entropy and target, or
            one that settles after the first of the `last` steps.
    """
    return [_row(arm, [measure_response(run, last) for run in runs]) for arm, runs in arms.items()]


def entropy_errors(run: Run) -> pd.Series:
    """Relative errors entropy/target - 1 by rollout step, from the first step that has a target."""
    if not {ENTROPY, TARGET, TAU} <= set(run.train):
        raise ValueError(f"{run.path} recorded no {ENTROPY} or {TARGET}: it had no schedule")
    table = run.train.set_index("rollout_step")
    return (table[ENTROPY] / table[TARGET] - 1).dropna()


def find_disturbance(run: Run) -> tuple[int, float]:
    """First step of the disturbed policy, and the factor on its logits.

    Raises ValueError for a run that was not disturbed.
    """
    node = run.config.get("callbacks", {}).get("disturbance")
    if not node:
        raise ValueError(f"{run.path} was not disturbed: use callbacks=disturbed")
    return int(node["step"]), float(node["factor"])


def measure_response(run: Run, last: int = LATE) -> dict[str, float]:
    """The measures of one run by name; see `response_rows`.

    Raises ValueError for a run without the disturbance, with too few steps around it, or that
    settles within the `last` steps: these are then not steady.
    """
    step, factor = find_disturbance(run)
    e = entropy_errors(run)
    before, after = e[e.index < step].tail(LATE), e[e.index >= step]
    if before.empty or len(after) <= WINDOW:
        raise ValueError(f"{run.path}: too few steps around the disturbance at step {step}")
    means = after.rolling(WINDOW).mean().dropna()
    outside = np.flatnonzero(np.abs(means.to_numpy()) > BAND)
    settled = 0 if outside.size == 0 else int(outside[-1]) + 1
    _check_settled(run, after, settled, settled == len(means), last)
    tau = run.train.set_index("rollout_step")[TAU]
    first = after.head(WINDOW)
    return {
        "before": float(np.sqrt((before**2).mean())),
        "dip": float(first[first.abs().idxmax()]),
        "settling": float(len(after) if settled == len(means) else settled),
        "steady": float(after.tail(last).mean()),
        "noise": float(after.tail(last).std(ddof=0)),
        "rise": float(tau.tail(last).mean() / tau[tau.index < step].tail(WINDOW).mean()),
        "wanted": factor,
    }


def _check_settled(run: Run, after: pd.Series, settled: int, never: bool, last: int) -> None:
    """Raise ValueError where a run settles, but only after the first of the `last` steps."""
    if never or len(after) - settled >= min(last, len(after)):
        return
    raise ValueError(
        f"{run.path}: settles at step {after.index[settled]}, after the first of the last {last} "
        f"steps, in which what remains is to be steady; give last={len(after) - settled} or fewer"
    )


def _row(arm: str, found: Sequence[Mapping[str, float]]) -> Row:
    means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
    by_seed = [each["settling"] for each in found]
    return {"arm": arm, "seeds": len(found), **means, "settling_by_seed": by_seed}

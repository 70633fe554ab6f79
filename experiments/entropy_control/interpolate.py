"""Arms at their own temperatures against GRPO interpolated to the very entropy that each has there.

    .venv/bin/python experiments/entropy_control/interpolate.py

A recorded control `matched ...` misses the entropy that it was asked for. Seed by seed and problem
by problem, pass@1 of GRPO is put on a line in ln H through its evaluation at temperature 1 and that
control, and read where the arm's entropy is. `fitted` takes the least-squares line through all of
GRPO's evaluations of that seed instead. Entropies count as known.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.statistics.means import mean_over_seeds_and_problems

RUNS = Path(__file__).parents[1] / "runs"
CONTROLS = {"ts": "matched ts", "ts_an": "matched ts_an", "e3": "matched ts_an"}
ARMS = ("grpo", *CONTROLS)


def main() -> None:
    arms = group_by_arm(
        load_runs(RUNS / f"seed-{s}_experiment-{arm}" for s in range(1, 6) for arm in ARMS)
    )
    for arm, control in CONTROLS.items():
        mine, line, fit, gaps, asked = [], [], [], [], []
        for run, grpo in zip(arms[arm], arms["grpo"], strict=True):
            own, points = score(run, "live"), curve(grpo)
            mine.append(own[1])
            line.append(read([points["t1"], points[control]], own[0]))
            fit.append(read(list(points.values()), own[0]))
            asked.append(own[1] - points[control][1])
            gaps.append(100 * (points[control][0] / own[0] - 1))
        print(
            f"{arm}: entropy of `{control}` less the arm's, %, by seed:",
            *(f"{gap:+.1f}" for gap in gaps),
        )
        for name, other in (("as recorded", None), ("line", line), ("fitted", fit)):
            a = np.array(mine if other is not None else asked)
            b = np.array(other) if other is not None else np.zeros_like(a)
            found = mean_over_seeds_and_problems(100 * (a - b)).interval()
            print(f"    {name}: {found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}]")


def curve(run: Run) -> dict[str, tuple[float, pd.Series]]:
    """Entropy and pass@1 by problem of GRPO as sampled at the end, but greedily."""
    here = run.evaluations[run.evaluations["rollout_step"] == run.evaluations["rollout_step"].max()]
    return {name: score(run, name) for name in here["name"] if name != "greedy"}


def score(run: Run, name: str) -> tuple[float, pd.Series]:
    """Entropy in nats per token, and pass@1 by problem, of a run's last evaluation of a name."""
    found = find_evaluation([run], name)
    if found is None:
        raise ValueError(f"{run.path} has no evaluation {name}")
    return found.entropy, pass_table(found.seeds[0], [1])[1].sort_index()


def read(points: list[tuple[float, pd.Series]], entropy: float) -> pd.Series:
    """pass@1 by problem at this entropy, on the least-squares line in ln H through the points."""
    x = np.log([point for point, _ in points]) - np.log(entropy)
    weights = np.linalg.pinv(np.stack([np.ones_like(x), x], axis=1))[0]  # of the line's value at 0
    return sum((weight * table for weight, (_, table) in zip(weights, points, strict=True)), 0.0)


if __name__ == "__main__":
    main()

"""Tables of the study's README that are no study's: GRPO read at arms' entropies, and cooling.

    .venv/bin/python experiments/entropy_control/interpolate.py

`interpolated`: arms at their own temperatures against GRPO interpolated to the very entropy that
each has there. A recorded control `matched ...` misses the entropy that it was asked for. Seed by
seed and problem by problem, pass@1 of GRPO is put on a line in ln H through its evaluation at
temperature 1 and that control, and read where the arm's entropy is. `fitted` takes the
least-squares line through all of GRPO's evaluations of that seed instead. Entropies count as known.

`cooled`: the untrained policy at lower temperatures, of the counts that `e3rl evaluate` drew with
the arguments that the README shows.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.page.study import write_tables
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.ledger.archive import open_runs
from e3rl.ledger.ledger import read_rows
from e3rl.statistics.interval import Interval
from e3rl.statistics.means import mean_over_seeds_and_problems
from e3rl.statistics.pass_at_k import pass_at_k
from e3rl.statistics.shares import share_interval

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
WAYS = ("Δ points, as recorded", "Δ points, line", "Δ points, fitted")
CONTROLS = {"ts": "matched ts", "ts_an": "matched ts_an", "e3": "matched ts_an"}
ARMS = ("grpo", *CONTROLS)


def main() -> None:
    write_tables(HERE / "README.md", tables())


def tables() -> dict[str, str]:
    return {"cooled": cooled(), "interpolated": interpolated()}


def cooled() -> str:
    lines = ["| T | entropy, nats | pass@1 % | pass@16 % |", "| ---: | ---: | ---: | ---: |"]
    for counts in read_rows(HERE / "results" / "cooled.jsonl"):
        cells = [f"{counts['temperature']:g}", f"{counts['entropy_sum'] / counts['tokens']:.3f}"]
        for k in (1, 16):
            if k <= min(counts["n"]):
                shares = pass_at_k(np.array(counts["n"]), np.array(counts["correct"]), k)
                found = share_interval(np.atleast_2d(shares))
                low, high = 100 * found.low, 100 * found.high
                cells.append(f"{100 * found.mean:.1f} [{low:.1f}, {high:.1f}]")
            else:
                cells.append("")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def interpolated() -> str:
    lines = [
        "| arm | control | its entropy less the arm's, %, by seed | " + " | ".join(WAYS) + " |"
    ]
    lines.append("| :--- | :--- | ---: | ---: | ---: | ---: |")
    arms = group_by_arm(
        load_runs(
            open_runs(RUNS) / f"seed-{s}_experiment-{arm}" for s in range(1, 6) for arm in ARMS
        )
    )
    for arm, control in CONTROLS.items():
        gaps, found = compare(arms[arm], arms["grpo"], control)
        cells = [f"{x.mean:+.1f} [{x.low:+.1f}, {x.high:+.1f}]" for x in found]
        seeds = ", ".join(f"{gap:+.1f}" for gap in gaps)
        lines.append(f"| {arm} | `{control}` | {seeds} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def compare(runs: list[Run], grpo: list[Run], control: str) -> tuple[list[float], list[Interval]]:
    """By how much the control misses the entropy, and the differences in all three ways."""
    differences, gaps = [], []
    for run, other in zip(runs, grpo, strict=True):
        (nats, own), points = score(run, "live"), curve(other)
        recorded = points[control][1]
        line = read([points["t1"], points[control]], nats)
        differences.append([own - recorded, own - line, own - read(list(points.values()), nats)])
        gaps.append(100 * (points[control][0] / nats - 1))
    ways = np.array(differences).swapaxes(0, 1)
    return gaps, [mean_over_seeds_and_problems(100 * way).interval() for way in ways]


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

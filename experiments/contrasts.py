"""Contrasts between recorded arms that no study's table has, and corrections for many of them.

    .venv/bin/python experiments/contrasts.py

All of the last validation (equal rollouts), at temperature 1 unless told; points, with 95 %
intervals over seeds and problems, paired by both.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from e3rl.analysis.measures.costs import common_cost
from e3rl.analysis.measures.evaluations import find_evaluation, pass_table
from e3rl.analysis.measures.reaching import accuracy_curves
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Run, group_by_arm, load_runs
from e3rl.ledger.archive import open_runs
from e3rl.statistics.crossing import first_crossing
from e3rl.statistics.holm import adjust_holm
from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import mean_over_seeds_and_problems
from e3rl.statistics.shares import share_interval

RUNS = Path(__file__).parent / "runs"
ARMS = ("grpo_er", "ts", "ts_an", "budget", "knapsack", "hora", "e3")
PAIRS = (("e3", "ts_an"), ("e3", "ts"), ("ts_an", "ts"), ("ts_rloo", "ts"), ("ts_an_rloo", "ts_an"))
Reals = NDArray[np.float64]


def main() -> None:
    arms = group_by_arm(load_runs(open_runs(RUNS).glob("*_experiment-*")))
    print("pass@1, arm less arm")
    for a, b in PAIRS:
        print(f"    {a} - {b}: {text(between(arms[a], arms[b]))}")
    by_rollouts = {arm: between(arms[arm], arms["grpo"]) for arm in ARMS}
    for cost, differences in (("rollouts", by_rollouts), ("tokens", at_equal_tokens(arms))):
        print(f"pass@1 less GRPO's at equal {cost}, p and p after Holm over these {len(ARMS)}")
        for (arm, found), p, q in holm(differences):
            print(f"    {arm}: {text(found)}  p {p:.3f}  Holm {q:.3f}")
    print("pass@1 at equal tokens")
    for arm, found in levels_at_equal_tokens(arms).items():
        print(f"    {arm}: {100 * found.mean:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]")
    print("pass@16 less the untrained policy's at temperature 1, each at its own entropy")
    base = table(arms["ts"][:1], "t1", 16, "first")
    for arm, name in (("grpo", "t1"), ("ts", "t1"), ("ts", "live")):
        after = table(arms[arm], name, 16)
        print(f"    {arm} {name}: {text(interval(after - base))}")
    print(f"noise of validation, correlation between seeds: {shared_noise(arms['grpo']):.2f}")
    print("rollouts until a pass@1, of GRPO's, seed by seed")
    for arm in ("ts", "ts_an", "e3"):
        for target in (0.5, 0.55, 0.575):
            ratios = ratios_by_seed(arms[arm], arms["grpo"], target)
            print(f"    {arm} {100 * target:g} %: {' '.join(f'{x:.2f}' for x in ratios)}")


def table(runs: list[Run], name: str, k: int, when: str = "last") -> Reals:
    """(S, P) pass@k, problems in one order."""
    found = find_evaluation(runs, name, when)
    if found is None:
        raise ValueError(f"{runs[0].name} has no evaluation {name}")
    return np.array([pass_table(each, [k])[k].sort_index() for each in found.seeds])


def between(a: list[Run], b: list[Run]) -> Estimate:
    """pass@1 of `a` less that of `b`, over the seeds that both have."""
    both = {run.seed for run in a} & {run.seed for run in b}
    first, second = (table([run for run in runs if run.seed in both], "t1", 1) for runs in (a, b))
    return interval(first - second)


def at_equal_tokens(arms: dict[str, list[Run]]) -> dict[str, Estimate]:
    """The same at the tokens that all runs of these arms generated, as in the studies' tables."""
    found = scores_at_equal_tokens(arms)
    return {arm: interval(found[arm] - found["grpo"]) for arm in ARMS}


def levels_at_equal_tokens(arms: dict[str, list[Run]]) -> dict[str, Interval]:
    """pass@1 itself at those tokens, of GRPO too."""
    return {arm: share_interval(scores) for arm, scores in scores_at_equal_tokens(arms).items()}


def scores_at_equal_tokens(arms: dict[str, list[Run]]) -> dict[str, Reals]:
    """(S, P) pass@1 by arm, between the validations before and after the common cost."""
    wanted = {arm: arms[arm] for arm in ("grpo", *ARMS)}
    cost = common_cost([run for runs in wanted.values() for run in runs], "tokens")
    found = {}
    for arm, runs in wanted.items():
        scores = scores_at(runs, "t1", 1, "tokens", cost)
        assert scores is not None
        found[arm] = scores.table.sort_index().sort_index(axis="columns").to_numpy(dtype=np.float64)
    return found


def interval(differences: Reals) -> Estimate:
    return mean_over_seeds_and_problems(100 * differences)


def text(found: Estimate) -> str:
    bounds = found.interval()
    return f"{found.mean:+.2f} [{bounds.low:+.2f}, {bounds.high:+.2f}]"


def holm(found: dict[str, Estimate]) -> list[tuple[tuple[str, Estimate], float, float]]:
    """Arms by falling evidence, with p and p after Holm's correction."""
    p = [each.p_value for each in found.values()]
    rows = list(zip(found.items(), p, adjust_holm(p), strict=True))
    return sorted(rows, key=lambda row: row[1])


def shared_noise(runs: list[Run]) -> float:
    """Mean correlation over problems, between seeds, of two draws' difference at temperature 1.

    Of independent noise it is 0: both draws are of one policy, 16 and 64 rollouts a problem.
    """
    gaps = table(runs, "live", 1) - table(runs, "t1", 1)
    return float(np.corrcoef(gaps)[np.triu_indices(len(runs), 1)].mean())


def ratios_by_seed(runs: list[Run], control: list[Run], target: float) -> list[float]:
    """Rollouts until the target, as a share of the control's of that seed; infinite for never."""
    points = np.linspace(0.0, 49_152.0, 193)
    costs = []
    for each in (runs, control):
        found = accuracy_curves(each, "t1", "rollouts", points)
        assert found is not None
        curves = found.values.mean(axis=2)
        costs.append([first_crossing(points, curve, target) for curve in curves])
    return [mine / other for mine, other in zip(*costs, strict=True)]


if __name__ == "__main__":
    main()

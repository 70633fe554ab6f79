"""Contrasts between recorded arms that no study's table has, and corrections for many of them.

    .venv/bin/python experiments/contrasts.py       # writes contrasts.md

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
from e3rl.analysis.tables.cells import Cells, as_markdown
from e3rl.ledger.archive import open_runs
from e3rl.statistics.crossing import first_crossing
from e3rl.statistics.holm import adjust_holm
from e3rl.statistics.interval import Estimate, Interval
from e3rl.statistics.means import mean_over_seeds_and_problems
from e3rl.statistics.shares import share_interval

HERE = Path(__file__).parent
RUNS = HERE / "runs"
TARGETS = (0.5, 0.55, 0.575)
ARMS = ("grpo_er", "ts", "ts_an", "budget", "knapsack", "hora", "e3")
WORDS = ("arm", "against", "equal", "sampling")  # columns of words
PAIRS = (("e3", "ts_an"), ("e3", "ts"), ("ts_an", "ts"), ("ts_rloo", "ts"), ("ts_an_rloo", "ts_an"))
Reals = NDArray[np.float64]


def main() -> None:
    (HERE / "contrasts.md").write_text(page(), encoding="utf-8")


def page() -> str:
    arms = group_by_arm(load_runs(open_runs(RUNS).glob("*_experiment-*")))
    return "\n".join(
        (
            "# Contrasts between recorded arms\n",
            "Of the run matrix, by `.venv/bin/python experiments/contrasts.py`; points, with 95 %",
            "intervals over seeds and problems. All are exploratory.\n",
            "## pass@1 after as many rollouts, arm less arm, uncorrected\n",
            markdown(["arm", "against", "Δ points"], pairs(arms)),
            f"## pass@1, arm less GRPO; p after Holm's correction over these {len(ARMS)}\n",
            markdown(["arm", "equal", "Δ points", "p"], corrected(arms)),
            "## pass@1 at equal tokens\n",
            markdown(["arm", "%"], levels(arms)),
            "## pass@16 less the untrained policy's at temperature 1, each at its own entropy\n",
            markdown(["arm", "sampling", "Δ points", "entropy", "untrained"], trained(arms)),
            "## Noise of validation\n",
            markdown(
                ["correlation between seeds", "pass@16, 64 rollouts %", "of 16 rollouts %"],
                [[f"{shared_noise(arms['grpo']):.2f}", *twice_drawn(arms["grpo"])]],
            ),
            "## Rollouts until a pass@1, of GRPO's, seed by seed\n",
            markdown(["arm", "pass@1", *(f"seed {n}" for n in range(1, 6))], reached(arms)),
        )
    )


def markdown(header: list[str], rows: list[list[str]]) -> str:
    return as_markdown(Cells(header, rows, note=""), WORDS).rstrip() + "\n"


def pairs(arms: dict[str, list[Run]]) -> list[list[str]]:
    return [[a, b, text(between(arms[a], arms[b]))] for a, b in PAIRS]


def corrected(arms: dict[str, list[Run]]) -> list[list[str]]:
    by_rollouts = {arm: between(arms[arm], arms["grpo"]) for arm in ARMS}
    rows = []
    for cost, differences in (("rollouts", by_rollouts), ("tokens", at_equal_tokens(arms))):
        for arm, found, p in holm(differences):
            rows.append([arm, cost, text(found), f"{p:.3f}".removeprefix("0")])
    return rows


def levels(arms: dict[str, list[Run]]) -> list[list[str]]:
    return [
        [arm, f"{100 * found.mean:.2f} [{100 * found.low:.2f}, {100 * found.high:.2f}]"]
        for arm, found in levels_at_equal_tokens(arms).items()
    ]


def trained(arms: dict[str, list[Run]]) -> list[list[str]]:
    base = table(arms["ts"][:1], "t1", 16, "first")
    start = entropy(arms["ts"][:1], "t1", "first")
    ends = (("grpo", "t1"), ("ts", "t1"), ("ts", "live"))
    return [
        [arm, name, text(interval(table(arms[arm], name, 16) - base)), nats, start]
        for arm, name in ends
        for nats in (entropy(arms[arm], name),)
    ]


def reached(arms: dict[str, list[Run]]) -> list[list[str]]:
    return [
        [arm, f"{100 * target:g} %"]
        + [f"{x:.2f}" for x in ratios_by_seed(arms[arm], arms["grpo"], target)]
        for arm in ("ts", "ts_an", "e3")
        for target in TARGETS
    ]


def entropy(runs: list[Run], name: str, when: str = "last") -> str:
    """Nats per token."""
    found = find_evaluation(runs, name, when)
    assert found is not None
    return f"{found.entropy:.2f}"


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


def holm(found: dict[str, Estimate]) -> list[tuple[str, Estimate, float]]:
    """Arms by falling evidence, with p after Holm's correction."""
    p = [each.p_value for each in found.values()]
    order = np.argsort(p)
    rows = [(*each, q) for each, q in zip(found.items(), adjust_holm(p), strict=True)]
    return [rows[i] for i in order]


def shared_noise(runs: list[Run]) -> float:
    """Mean correlation over problems, between seeds, of two draws' difference at temperature 1.

    Of independent noise it is 0: both draws are of one policy, 16 and 64 rollouts a problem.
    """
    gaps = table(runs, "live", 1) - table(runs, "t1", 1)
    return float(np.corrcoef(gaps)[np.triu_indices(len(runs), 1)].mean())


def twice_drawn(runs: list[Run]) -> list[str]:
    """pass@16 of the same two draws."""
    return [f"{100 * table(runs, name, 16).mean():.1f}" for name in ("t1", "live")]


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

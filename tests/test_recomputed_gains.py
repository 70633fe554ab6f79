"""What arms gain over the policy that they start from, and what changes within an arm between two
windows of its training, follow from the raw ledgers by code of their own, and so do the claims that
rest on them."""

import math
import re
import statistics
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from raw_ledgers import (
    ROOT,
    Judged,
    RawRun,
    Reals,
    judge,
    judge_units,
    pass_at,
    quantile,
    read_archive,
)
from test_recomputed_exploratory import asked_of, mean_of_steps, runs_of

pytestmark = pytest.mark.end_to_end
Counts = dict[str, tuple[int, int]]
GAINS = [(path.parts[-3], path.stem) for path in sorted(ROOT.glob("*/results/*.csv"))]
GAINS = [
    each for each in GAINS if "gain_low" in pd.read_csv(ROOT / each[0] / f"results/{each[1]}.csv")
]
CLAIMS = yaml.safe_load((ROOT / "claims.yaml").read_text(encoding="utf-8"))["claims"]
WITHIN = [test for claim in CLAIMS for test in claim["tests"] if "less" in test]
GAINED = [
    test for claim in CLAIMS for test in claim["tests"] if (test["study"], test["table"]) in GAINS
]
PAGE = (ROOT.parent / "docs" / "claims.md").read_text(encoding="utf-8")


def ends(run: RawRun, evaluation: str) -> tuple[Counts, Counts]:
    """Of the first validation and of the last one."""
    found = run.validations[evaluation]
    return found[min(found)], found[max(found)]


def shares(counts: Counts, k: int) -> Reals:
    """pass@k by problem, in the order of their names."""
    return np.array([pass_at(k, *cell) for _, cell in sorted(counts.items())])


def gained(runs: list[RawRun], evaluation: str, k: int) -> Judged:
    pairs = [ends(run, evaluation) for run in runs]
    before, after = (np.array([shares(pair[end], k) for pair in pairs]) for end in (0, 1))
    return gained_between(before, after)


def gained_between(before: Reals, after: Reals) -> Judged:
    found = judge(after - before) if len(after) > 1 else judge_units((after - before)[0])
    low, high = found.low, found.high
    middle = float(after.mean())
    out = far_luck(after) * math.sqrt(abs(1 - 2 * middle)) if len(after) > 1 else 0.0
    if middle <= 0.5:
        high = found.mean + math.sqrt((high - found.mean) ** 2 + out**2)
    else:
        low = found.mean - math.sqrt((low - found.mean) ** 2 + out**2)
    start = float(before.mean())
    return found._replace(low=max(low, -start), high=min(high, 1 - start))


def far_luck(after: Reals) -> float:
    """How much farther than Student's bound the lognormal one of the runs' mean distances from the
    nearer edge is, in squares, times what is left of it near one half."""
    n_seeds, n_problems = after.shape
    cells = after - after.mean(axis=0) - after.mean(axis=1, keepdims=True) + after.mean()
    noise = float((cells**2).sum()) / ((n_seeds - 1) * (n_problems - 1)) / n_problems
    runs = after.mean(axis=1)
    away = [max(x if after.mean() <= 0.5 else 1 - x, 0.25 / n_problems) for x in runs.tolist()]
    logs, mean, t = [math.log(x) for x in away], math.fsum(away) / n_seeds, quantile(n_seeds - 1)
    of_runs = max(0.0, statistics.variance(away) - noise)
    of_logs = max(0.0, statistics.variance(logs) - noise / mean**2)
    reach = t * math.sqrt(of_logs / n_seeds + of_logs**2 / (2 * (n_seeds - 1)))
    above = math.exp(math.fsum(logs) / n_seeds + of_logs / 2 + reach) - mean
    square = max(0.0, above) ** 2 - t * t * of_runs / n_seeds
    return math.sqrt(max(0.0, square * (1 - 2 * min(mean, 0.5))))


@pytest.mark.parametrize(("study", "table"), GAINS)
def test_gains_over_the_first_policy_follow_from_the_raw_ledgers(study: str, table: str) -> None:
    rows = pd.read_csv(ROOT / study / "results" / f"{table}.csv").to_dict("records")
    assert rows
    for row in rows:
        every = sorted(runs_of(study)[row["arm"]].items())
        runs = [run for seed, run in every if pd.isna(row["seed"]) or seed == row["seed"]]
        assert len(runs) == row["seeds"]
        found = gained(runs, row["evaluation"], int(row["measure"].rpartition("@")[2]))
        said = [row[f"gain{end}"] for end in ("", "_low", "_high")]
        assert [found.mean, found.low, found.high] == pytest.approx(said, abs=6e-6), row


@pytest.mark.parametrize("test", GAINED, ids=lambda test: test["study"])
def test_claims_that_rest_on_a_gain_are_decided_by_its_interval(test: dict[str, Any]) -> None:
    row = test["row"]
    runs = list(runs_of(test["study"])[row["arm"]].values())
    found = gained(runs, row.get("evaluation", "t1"), int(row["measure"].rpartition("@")[2]))
    said = " ".join(f"{100 * x:+.2f}" for x in (found.mean, found.low, found.high)).split()
    printed = f"{said[0]} [{said[1]}, {said[2]}] points"
    (line,) = (line for line in PAGE.splitlines() if f"| {printed} |" in line)
    assert f"| *{verdict(found, test['expect'])}*" in line


def verdict(found: Judged, expect: str) -> str:
    if found.low <= 0 <= found.high:
        return "open"
    return "holds" if (found.mean > 0) == (expect == "above") else "contradicted"


@pytest.mark.parametrize(
    ("what", "evaluation", "k"),
    [("pass@1", "t1", 1), ("pass@4", "t1", 4), ("pass@16", "t1", 16), ("greedy", "greedy", 1)],
)
def test_what_the_bed_says_that_grpo_gains_follows_too(what: str, evaluation: str, k: int) -> None:
    """Before training, all draws of the seeds together; draws that are alike count once."""
    every = read_archive(ROOT / "carries_core" / "runs.tar.xz")
    runs = sorted((run for run in every if run.arm == "grpo"), key=lambda run: run.seed)
    assert [run.seed for run in runs] == list(range(101, 111))
    starts: list[Counts] = []
    for first, _ in (ends(run, evaluation) for run in runs):
        if first not in starts:
            starts.append(first)
    before = {x: tuple(sum(s[x][i] for s in starts) for i in (0, 1)) for x in starts[0]}
    after = np.array([shares(ends(run, evaluation)[1], k) for run in runs])
    found = gained_between(np.tile(shares(before, k), (len(after), 1)), after)
    mean, low, high = (f"{100 * x:+.1f}" for x in (found.mean, found.low, found.high))
    text = (ROOT / "carries_bed" / "README.md").read_text(encoding="utf-8")
    table = text.split("<!-- table: ten_seeds -->")[1].split("<!-- end -->")[0]
    assert re.search(rf"(?m)^\| {what} \|.*\| {re.escape(f'{mean} [{low}, {high}]')} \|$", table)


@pytest.mark.parametrize("test", WITHIN, ids=lambda test: test["study"])
def test_claims_of_two_windows_of_one_arm_follow_from_the_raw_ledgers(test: dict[str, Any]) -> None:
    asked = asked_of(test["study"])["tables"][test["table"]]
    later, earlier = (asked["windows"][test[side]["window"]] for side in ("row", "less"))
    assert test["row"]["arm"] == test["less"]["arm"]
    assert test["unit"] == "nats"
    runs = runs_of(test["study"])[test["row"]["arm"]]
    changes = [
        mean_of_steps(run, asked["column"], *later) - mean_of_steps(run, asked["column"], *earlier)
        for run in runs.values()
    ]
    found = judge_units(np.array(changes))
    printed = f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}] nats"
    (line,) = (line for line in PAGE.splitlines() if f"| {printed} |" in line)
    assert f"experiments/{test['study']}/README.md" in line
    assert f"| *{verdict(found, test['expect'])}* |" in line


def test_there_are_gains_and_windows_to_recompute() -> None:
    assert len(GAINS) >= 3
    assert GAINED
    assert {test["study"] for test in WITHIN} >= {"entropy_control", "smollm2_schedules"}

"""What arms gain over the policy that they start from, and what changes within an arm between two
windows of its training, follow from the raw ledgers by code of their own, and so do the claims that
rest on them."""

import re
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
    judge_all,
    judge_units,
    pass_at,
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
    table = np.array([shares(last, k) - shares(first, k) for first, last in pairs])
    return judge(table) if len(runs) > 1 else judge_units(table[0])


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
    found = judge_all(after - shares(before, k))
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

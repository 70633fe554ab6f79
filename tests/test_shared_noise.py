"""How much of their validation's noise the arms of a seed share."""

import json
import lzma
import runpy
from statistics import correlation, fmean
from typing import Any

import numpy as np
import pytest

from e3rl.data.carries import carry_problems
from e3rl.ledger.archive import open_runs
from e3rl.ledger.ledger import read_rows
from pages import ROOT

STUDIES = ROOT / "experiments"
PAGE = STUDIES / "coverage" / "README.md"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDIES / "coverage" / "shared_noise.py"))


def test_the_table_is_what_the_records_give(study: dict[str, Any]) -> None:
    between = PAGE.read_text(encoding="utf-8").split("<!-- table: noise -->")[1]
    made = study["as_markdown"](study["noise_cells"](), ("arms of, and shared", "by seed"))
    assert between.split("<!-- end -->")[0].strip() == made.strip()


def test_arms_are_paired_by_seed_and_with_all_others(study: dict[str, Any]) -> None:
    first = np.array([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [5.0, 1.0, 0.0]])
    second = -first
    same, other = study["correlations"](first, second)
    np.testing.assert_allclose(same, -1)
    by_hand = [
        fmean(correlation(list(first[i]), list(second[j])) for j in range(3) if j != i)
        for i in range(3)
    ]
    np.testing.assert_allclose(other, by_hand)


def test_other_code_finds_the_same_correlation_in_the_ledgers() -> None:
    rows = json.loads(
        lzma.decompress((STUDIES / "carries_hotter" / "samples.json.xz").read_bytes())
    )
    order = [problem.id for problem in carry_problems("validation", 1024)]
    runs = open_runs(STUDIES / "carries_budget" / "runs")

    def noise(arm: str, seed: int) -> list[float]:
        (later,) = (
            row["right"]
            for row in rows
            if (row["arm"], row["seed"], row["temperature"]) == (arm, seed, 1.0)
        )
        ledger = runs / f"seed-{seed}_experiment-{arm}_engine-transformers" / "validation.jsonl"
        (last,) = (
            row
            for row in read_rows(ledger)
            if (row["name"], row["rollout_step"], row["n"][0]) == ("t1", 128, 16)
        )
        right = dict(zip(last["problem_id"], last["correct"], strict=True))
        return [right[each] / 16 - more / 24 for each, more in zip(order, later, strict=True)]

    found = fmean(correlation(noise("grpo", s), noise("budget", s)) for s in range(141, 147))
    assert f"| one seed: both readings | {found:+.3f} [" in PAGE.read_text(encoding="utf-8")

"""Four optimiser steps beside one: differences of differences, seeds not paired."""

import csv
import json
import lzma
import runpy
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "carries_four_steps"
PAGES = {"carries_four_steps": range(236, 246), "carries_other_problems": range(211, 221)}


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "beside_one_step.py"))


def test_the_page_has_the_table_of_the_runs(study: dict[str, Any]) -> None:
    four, one = (
        study["load_runs"](study["open_runs"](ROOT / "experiments" / name / "runs"))
        for name in PAGES
    )
    made = study["as_markdown"](
        study["comparison_cells"](study["compare"](four, one)),
        ("arm", "measure", "problems", "verdict"),
    )
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    between = text.split("<!-- table: beside_one_step -->")[1].split("<!-- end -->")[0]
    assert between.strip() == made.strip()


def validations(page: str) -> dict[tuple[str, int, int], dict[str, tuple[int, int]]]:
    """Rollouts and right ones by problem at T = 1, by arm, seed and step."""
    found = {}
    with tarfile.open(ROOT / "experiments" / page / "runs.tar.xz") as archive:
        for member in archive.getnames():
            if not member.endswith(("validation.jsonl", "validation.jsonl.xz")):
                continue
            seed, arm = Path(member).parent.name.removeprefix("seed-").split("_")[:2]
            file = archive.extractfile(member)
            assert file is not None
            data = file.read()
            text = lzma.decompress(data) if member.endswith(".xz") else data
            for row in map(json.loads, text.splitlines()):
                if row["name"] == "t1":
                    counts = zip(row["n"], row["correct"], strict=True)
                    found[arm.removeprefix("experiment-"), int(seed), row["rollout_step"]] = dict(
                        zip(row["problem_id"], counts, strict=True)
                    )
    return found


def test_differences_are_what_other_code_finds_in_the_ledgers() -> None:
    ledgers = {page: validations(page) for page in PAGES}
    first = [ledgers[page]["grpo", seed, 0] for page, seeds in PAGES.items() for seed in seeds]
    shares = {
        problem: sum(each[problem][1] for each in first) / sum(each[problem][0] for each in first)
        for problem in first[0]
    }
    subsets = {
        "all": list(shares),
        "mostly solved untrained": [name for name, share in shares.items() if share >= 0.5],
        "never solved untrained": [name for name, share in shares.items() if share == 0],
    }

    def gain(page: str, arm: str, measure: str, of: str) -> float:
        def level(arm: str, seed: int) -> float:
            last = ledgers[page][arm, seed, 128]
            right = [last[name][1] for name in subsets[of]]
            assert {last[name][0] for name in subsets[of]} == {16}
            return float(np.mean(right) / 16 if measure == "pass@1" else np.mean(np.sign(right)))

        return float(np.mean([level(arm, s) - level("grpo", s) for s in PAGES[page]]))

    with (STUDY / "results" / "beside_one_step.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    for row in rows:
        four, one = (gain(page, row["arm"], row["measure"], row["of"]) for page in PAGES)
        assert float(row["value"]) == pytest.approx(four, abs=1e-6)
        assert float(row["difference"]) == pytest.approx(four - one, abs=1e-6)

"""Arms at their best temperatures: chosen on one half of the problems, judged on the other."""

import csv
import json
import lzma
import math
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from e3rl.analysis.figures.saved import digest_figure, read_digest

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "experiments" / "carries_hotter"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(STUDY / "compare.py"))


def test_each_half_is_read_at_the_best_temperature_of_the_other(study: dict[str, Any]) -> None:
    # Problems 0 and 2 do best at 1.2, problems 1 and 3 at 1.0.
    tables = {
        1.0: np.array([[0.1, 0.9, 0.1, 0.9], [0.1, 0.9, 0.3, 0.7]]),
        1.2: np.array([[0.6, 0.2, 0.6, 0.2], [0.6, 0.2, 0.8, 0.4]]),
    }
    chosen = study["choose_temperatures"](tables)
    assert chosen == (1.0, 1.2)  # of even and odd places, by what odd and even ones showed
    read = study["read_at"](tables, chosen)
    np.testing.assert_array_equal(read, [[0.1, 0.2, 0.1, 0.2], [0.1, 0.2, 0.3, 0.4]])


def test_of_equal_temperatures_the_lowest_is_chosen(study: dict[str, Any]) -> None:
    tables = {t: np.full((2, 4), 0.5) for t in (1.2, 1.0, 1.1)}
    assert study["choose_temperatures"](tables) == (1.0, 1.0)


def test_comparisons_are_of_the_policies_that_were_sampled(study: dict[str, Any]) -> None:
    samples = [
        study["Samples"](
            arm=arm,
            seed=seed,
            temperature=t,
            entropy=0.2 * t,
            right=np.full(1024, solved[arm] if t == 1.2 else 0),
            right_and_long=np.zeros(1024, int),
            long=np.zeros(1024, int),
        )
        for solved in ({"grpo": 0, "budget": 24},)
        for arm in ("grpo", "budget")
        for seed in range(141, 147)
        for t in (1.0, 1.1, 1.2, 1.4)
    ]
    at_one, _, at_best, _ = study["compare"](samples)
    assert (at_one["temperatures"], at_one["against_temperatures"]) == ("1.0", "1.0")
    assert (at_one["measure"], at_one["difference"]) == ("pass@16", 0)
    assert (at_best["temperatures"], at_best["difference"]) == ("1.2", 1)
    assert [row["family_size"] for row in (at_one, at_best)] == [1, 1]  # each declared alone


def test_the_page_has_the_tables_of_the_samples(study: dict[str, Any]) -> None:
    samples = study["read_samples"]()
    assert len(samples) == 84 + 7  # and the policy before training
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    for name, cells in (
        ("hotter", study["comparison_cells"](study["compare"](samples))),
        ("temperatures", study["temperature_cells"](samples)),
        ("lengths", study["length_cells"](samples)),
    ):
        between = text.split(f"<!-- table: {name} -->")[1].split("<!-- end -->")[0]
        made = study["as_markdown"](cells, ("arm", "measure", "verdict"))
        assert between.strip() == made.strip(), name


def test_the_budget_has_more_at_every_temperature_but_the_hottest(study: dict[str, Any]) -> None:
    samples = study["read_samples"]()
    mine, other = (study["tables_of"](samples, arm, 16) for arm in ("budget", "grpo"))
    gaps = {t: 100 * (mine[t] - other[t]).mean() for t in mine}
    assert gaps.pop(2.0) < 0
    text = (STUDY / "README.md").read_text(encoding="utf-8")
    said = f"`budget` has +{min(gaps.values()):.1f} to +{max(gaps.values()):.1f} points of pass@16"
    assert f"{said} at all but T = 2" in text


def test_the_frontier_is_that_of_the_samples(study: dict[str, Any]) -> None:
    samples = study["read_samples"]()
    assert read_digest(STUDY / "figures" / "frontier.png") == digest_figure(
        study["draw_samples"](samples)
    )
    rows = study["frontier_rows"](samples)
    assert len(rows) == 3 * 7
    (row,) = (r for r in rows if (r["arm"], r["temperature"]) == ("untrained", 1.4))
    (raw,) = (s for s in samples if (s.arm, s.temperature) == ("untrained", 1.4))
    assert row["pass@1"] == pytest.approx(raw.right.sum() / (24 * 1024))
    solved = [1 - math.comb(24 - right, 16) / math.comb(24, 16) for right in raw.right.tolist()]
    assert row["pass@k"] == pytest.approx(math.fsum(solved) / 1024)


def test_training_does_more_than_any_temperature(study: dict[str, Any]) -> None:
    samples = study["read_samples"]()
    before, *after = (study["tables_of"](samples, arm, 16) for arm in ("untrained", *study["ARMS"]))
    means = {t: 100 * table.mean() for t, table in before.items()}
    gaps = {t: min(100 * arm[t].mean() for arm in after) - mean for t, mean in means.items()}
    best = max(means, key=lambda t: means[t])
    assert (best, 20 < gaps[best] < 21, 14 < min(gaps.values()) < 15) == (1.6, True, True)
    once = study["tables_of"](samples, "untrained", 1)
    assert max(once, key=lambda t: once[t].mean()) == 1.0
    bed = (ROOT / "experiments" / "carries_bed" / "README.md").read_text(encoding="utf-8")
    assert f"pass@1 is highest at T = 1, pass@16 is highest at T = {best:g}." in bed
    text = " ".join((STUDY / "README.md").read_text(encoding="utf-8").split())
    assert f"highest at T = 1.6, {means[best]:.1f} [" in text
    assert "have more than twenty points more" in text
    assert "at every temperature they have at least fourteen" in text


@pytest.mark.parametrize(("family", "own_is_best"), [("at_one", False), ("at_best", True)])
def test_the_differences_are_those_that_other_code_finds(family: str, own_is_best: bool) -> None:
    rows = json.loads(lzma.decompress((STUDY / "samples.json.xz").read_bytes()))

    def solved(arm: str, temperature: float, half: int) -> float:
        """Mean pass@16 over seeds and the problems of even or odd place, from 24 rollouts each."""
        of = [r["right"] for r in rows if (r["arm"], r["temperature"]) == (arm, temperature)]
        values = [
            1 - math.comb(24 - right, 16) / math.comb(24, 16)
            for by_problem in of
            for right in by_problem[half::2]
        ]
        assert len(values) == 6 * 512
        return math.fsum(values) / len(values)

    def read(arm: str, half: int, is_best: bool) -> float:
        best = max((1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0), key=lambda t: solved(arm, t, 1 - half))
        return solved(arm, best if is_best else 1.0, half)

    gaps = [read("budget", half, own_is_best) - read("grpo", half, True) for half in (0, 1)]
    with (STUDY / "results" / f"{family}.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert float(row["difference"]) == pytest.approx(sum(gaps) / 2, abs=1e-6)

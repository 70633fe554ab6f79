from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from e3rl.analysis.measures.gain import gain_rows
from e3rl.analysis.sources.runs import Run, load_run
from e3rl.analysis.tables.study_cells import gain_cells
from e3rl.ledger.ledger import Ledger


def trained(
    folder: Path, seed: int, before: Sequence[int], after: Sequence[int], last: int = 8
) -> Run:
    """A run with right ones of 4 rollouts of three problems, before and after its `last` steps."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"name: grpo\nseed: {seed}\n")
    with Ledger(folder / "metrics.jsonl") as ledger:
        ledger.append({"kind": "train", "rollout_step": last - 1, "epoch": 0, "policy/loss": 0.5})
    (folder / "prompts.jsonl").touch()
    with Ledger(folder / "validation.jsonl") as ledger:
        for step, correct in ((0, before), (last, after)):
            problems = {"problem_id": ["a", "b", "c"], "source": ["x"] * 3, "n": [4] * 3}
            entropy = {"entropy_sum": 1.0, "tokens": 9}
            row = {"rollout_step": step, "name": "t1", "temperature": 1.0}
            ledger.append(row | problems | {"correct": list(correct)} | entropy)
    return load_run(folder)


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [
        trained(tmp_path / "one", 1, (0, 2, 4), (2, 4, 4)),
        trained(tmp_path / "two", 2, (0, 0, 4), (0, 2, 4)),
    ]


def test_gains_are_paired_by_seed_and_problem(runs: list[Run]) -> None:
    together, first, second = gain_rows({"grpo": runs}, by_seed=True)
    assert (together["seed"], first["seed"], second["seed"]) == (None, 1, 2)
    # seed 1: 0, 1/2, 1 before and 1/2, 1, 1 after; seed 2: 0, 0, 1 and 0, 1/2, 1
    assert together["before"] == pytest.approx(5 / 12)
    assert together["after"] == pytest.approx(2 / 3)
    assert together["gain"] == pytest.approx(1 / 4)
    assert (first["gain"], second["gain"]) == (pytest.approx(1 / 3), pytest.approx(1 / 6))
    assert together["gain_low"] < 1 / 4 < together["gain_high"]
    assert (together["seeds"], first["seeds"], together["problems"]) == (2, 1, 3)


def test_passes_for_which_there_are_too_few_rollouts_have_no_row(runs: list[Run]) -> None:
    rows = gain_rows({"grpo": runs}, ks=(4, 8))
    assert [row["measure"] for row in rows] == ["pass@4"]
    assert rows[0]["before"] == pytest.approx((2 / 3 + 1 / 3) / 2)  # solved once or more
    assert gain_rows({"grpo": runs}, evaluations=("greedy",)) == []
    with pytest.raises(ValueError, match="no arm has"):
        gain_cells([])


def test_arms_may_be_chosen(runs: list[Run]) -> None:
    arms = {"grpo": runs[:1], "e3": runs[1:]}
    assert [row["gain"] for row in gain_rows(arms, of=["e3"])] == [pytest.approx(1 / 6)]
    with pytest.raises(ValueError, match="gain of 'ts': no recorded arm; there are grpo, e3"):
        gain_rows(arms, of=["ts"])


def test_cells_name_seeds_where_there_is_a_row_of_each(runs: list[Run]) -> None:
    cells = gain_cells(gain_rows({"grpo": runs}, by_seed=True))
    assert [row[cells.header.index("seed")] for row in cells.body] == ["all", "1", "2"]
    assert cells.body[0][cells.header.index("before training %")].startswith("41.7 [")
    assert cells.body[0][cells.header.index("gain, points")].startswith("+25.0 [")
    assert "2 seeds, 3 problems" in cells.note


def test_a_run_that_ended_before_others_of_its_arm_is_left_out_and_named(
    runs: list[Run], tmp_path: Path
) -> None:
    short = trained(tmp_path / "half", 3, (0, 0, 0), (4, 4, 4), last=4)
    rows = gain_rows({"grpo": [*runs, short]}, by_seed=True)
    assert [row["gain"] for row in rows] == [
        row["gain"] for row in gain_rows({"grpo": runs}, by_seed=True)
    ]
    note = gain_cells(rows).note
    assert f"Left out, validated last before other runs of their arm: {tmp_path / 'half'}." in note
    assert note.count("half") == 1
    assert "left_out" not in gain_rows({"grpo": runs})[0]


def test_every_row_has_the_number_of_seeds_of_its_own_arm(runs: list[Run], tmp_path: Path) -> None:
    arms = {
        "grpo": runs,
        "e3": [replace(trained(tmp_path / "x", 1, (0, 2, 4), (4, 4, 4)), name="e3")],
    }
    cells = gain_cells(gain_rows(arms))
    assert [row[cells.header.index("seeds")] for row in cells.body] == ["2", "1"]

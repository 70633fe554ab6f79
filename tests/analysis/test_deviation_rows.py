"""How much the seeds of an arm differ, beside those of a control."""

from dataclasses import replace
from pathlib import Path

import pytest

from e3rl.analysis.measures.deviation_rows import deviation_rows
from e3rl.analysis.measures.families import judge_rows
from e3rl.analysis.sources.runs import Arms, Run, load_run
from e3rl.analysis.tables.study_cells import deviation_cells
from e3rl.ledger.ledger import Ledger


def trained(folder: Path, arm: str, seed: int, right: int) -> Run:
    """A run that ends with so many right ones of 100 rollouts of a problem."""
    folder.mkdir()
    (folder / "config.yaml").write_text(f"name: {arm}\nseed: {seed}\n")
    cost = {"cost/tokens": 10.0, "cost/rollouts": 8.0}
    with Ledger(folder / "metrics.jsonl") as ledger:
        ledger.append({"kind": "train", "rollout_step": 7, "epoch": 0} | cost)
    (folder / "prompts.jsonl").touch()
    with Ledger(folder / "validation.jsonl") as ledger:
        for step, correct in ((0, 5), (8, right)):
            problem = {"problem_id": ["a"], "source": ["x"], "n": [100], "correct": [correct]}
            row = {"rollout_step": step, "name": "t1", "temperature": 1.0}
            ledger.append(row | problem | {"entropy_sum": 1.0, "tokens": 9})
    return load_run(folder)


@pytest.fixture
def arms(tmp_path: Path) -> Arms:
    scores = {
        "grpo": {1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 9: 99},
        "mine": {1: 20, 2: 0, 3: 60, 4: 40, 5: 80},
        "few": {1: 30, 2: 50},
        "one": {1: 30},
    }
    return {
        arm: [trained(tmp_path / f"{arm}-{seed}", arm, seed, n) for seed, n in runs.items()]
        for arm, runs in scores.items()
    }


def test_deviations_are_of_all_seeds_and_ratios_of_those_that_both_have(arms: Arms) -> None:
    grpo, mine, few = deviation_rows(arms, "grpo")  # `one` has a single seed
    assert (grpo["seeds"], grpo["ratio"], grpo["comparison"]) == (6, None, None)
    assert (mine["least"], mine["greatest"], mine["mean"]) == pytest.approx((0, 0.8, 0.4))
    assert mine["deviation"] == pytest.approx(0.1**0.5)  # of 20, 0, 60, 40, 80 %
    assert mine["deviation_low"] < 0.1**0.5 < mine["deviation_high"]
    assert mine["paired_seeds"] == 5
    assert mine["ratio"] == pytest.approx(2)  # √10 over √2.5, without seed 9
    assert mine["p"] == pytest.approx(0.119, abs=1e-3)
    assert (few["seeds"], few["paired_seeds"], few["ratio"]) == (2, None, None)


def test_runs_that_all_end_alike_have_no_ratio(arms: Arms, tmp_path: Path) -> None:
    lost = [trained(tmp_path / f"lost-{seed}", "lost", seed, 0) for seed in (1, 2, 3)]
    *_, row = deviation_rows(arms | {"lost": lost}, "grpo", of=["grpo", "lost"])
    assert (row["arm"], row["deviation"], row["ratio"], row["p"]) == ("lost", 0, None, None)


def test_ratios_are_corrected_together_and_shown(arms: Arms) -> None:
    rows = judge_rows(deviation_rows(arms, "grpo", ks=(1, 2), of=["mine"]))
    assert [row["family_size"] for row in rows] == [2, 2]
    assert rows[0]["p_adjusted"] >= rows[0]["p"]
    cells = deviation_cells(rows)
    assert cells.body[0][cells.header.index("least")] == "0.0"
    assert "exploratory" in cells.note


@pytest.mark.parametrize(
    ("control", "of", "name"), [("nobody", (), "nobody"), ("grpo", ("who",), "who")]
)
def test_an_arm_that_is_not_there_is_an_error(
    arms: Arms, control: str, of: tuple[str, ...], name: str
) -> None:
    with pytest.raises(ValueError, match=f"deviation of '{name}': no recorded arm"):
        deviation_rows(arms, control, of=of)


def test_a_run_that_ended_before_others_of_its_arm_is_left_out_and_named(
    arms: Arms, tmp_path: Path
) -> None:
    early = trained(tmp_path / "early", "mine", 6, 100)
    problems = early.problems.assign(rollout_step=early.problems["rollout_step"] // 2)
    more = {**arms, "mine": [*arms["mine"], replace(early, problems=problems)]}
    _, mine = deviation_rows(more, "grpo", of=["grpo", "mine"])
    assert mine["left_out"] == [str(tmp_path / "early")]
    (expected,) = deviation_rows(arms, "grpo", of=["mine"])
    assert "left_out" not in expected
    for name in ("seeds", "greatest", "deviation", "ratio"):
        assert mine[name] == expected[name], name


def test_deviations_ask_for_no_cost(arms: Arms) -> None:
    without = {
        arm: [replace(run, train=run.train.drop(columns="cost/tokens")) for run in runs]
        for arm, runs in arms.items()
    }
    assert deviation_rows(without, "grpo") == deviation_rows(arms, "grpo")

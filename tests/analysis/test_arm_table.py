import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.arm_table import (
    arm_evaluations,
    arm_rows,
    arm_table_markdown,
    arm_table_text,
)


def item(
    arm: str, name: str, correct: list[int], n: int = 16, entropy: float = 0.5, ids: str = "p"
) -> EvaluationResult:
    table = pd.DataFrame(
        {"problem_id": [f"{ids}{i}" for i in range(len(correct))], "n": n, "correct": correct}
    )
    return EvaluationResult(arm, name, 1.0, entropy, (table,))


def test_rows_hold_means_intervals_and_the_paired_difference() -> None:
    control, treated = item("grpo", "t1", [0, 4, 8, 16]), item("e3", "t1", [4, 8, 8, 16])
    first, second = arm_rows([control, treated], control="grpo", k=4)
    assert first["pass@1"] == pytest.approx(28 / 64)
    assert first["pass@1_low"] < first["pass@1"] < first["pass@1_high"]
    assert first["against"] is None
    assert first["pass@1_difference"] is None
    assert second["against"] == "grpo t1"
    assert second["pass@1_difference"] == pytest.approx(8 / 64)
    assert (second["problems"], second["paired_problems"], second["seeds"]) == (4, 4, 1)
    assert second["pass@1_by_seed"] == [pytest.approx(36 / 64)]
    assert second["pass@4_difference"] > 0


def test_pairing_narrows_the_interval() -> None:
    base = list(range(0, 14)) * 4
    control, treated = item("grpo", "t1", base), item("e3", "t1", [c + 2 for c in base])
    row = arm_rows([control, treated], control="grpo")[1]
    width = row["pass@1_difference_high"] - row["pass@1_difference_low"]
    assert width == pytest.approx(0)
    assert row["pass@1_high"] - row["pass@1_low"] > 0.1


@pytest.mark.parametrize("right", [0, 16])
def test_what_all_problems_agree_on_has_an_interval_with_width(right: int) -> None:
    (row,) = arm_rows([item("e3", "t1", [right] * 64)])
    for name in ("pass@1", "pass@16"):
        width = row[f"{name}_high"] - row[f"{name}_low"]
        assert width == pytest.approx(0.0566, abs=1e-4), name


def test_live_is_compared_with_the_control_at_its_entropy() -> None:
    controls = [
        item("grpo", name, correct, n=32, entropy=h)
        for name, h, correct in [("t1", 0.36, [20, 8]), ("t1.1", 0.39, [16, 4])]
    ]
    treated = item("e3", "live", [20, 10], n=32, entropy=0.38)
    rows = arm_rows([*controls, treated], control="grpo")
    share = math.log(0.38 / 0.36) / math.log(0.39 / 0.36)
    expected = 30 / 64 - ((1 - share) * 28 + share * 20) / 64
    assert rows[-1]["pass@1_difference"] == pytest.approx(expected)
    assert rows[-1]["against"] == "grpo matched"
    assert rows[-1]["against_entropy"] == 0.38
    assert [row["against"] for row in rows[:2]] == [None] * 2
    assert "grpo matched, entropy 0.380" in arm_table_text(rows)


def test_an_entropy_that_the_control_does_not_have_is_told() -> None:
    controls = [item("grpo", "t1", [4, 8], n=32, entropy=0.36), item("grpo", "live", [4, 8])]
    rows = arm_rows([*controls, item("e3", "live", [4, 9], entropy=0.5)], control="grpo")
    assert "grpo t1, entropy 0.360" in arm_table_text(rows)


def test_greedy_has_no_larger_k() -> None:
    row = arm_rows([item("e3", "greedy", [0, 1, 1], n=1)])[0]
    assert row["pass@1"] == pytest.approx(2 / 3)
    assert row["pass@16"] is None
    assert row["pass@16_low"] is None


def test_other_problems_than_the_controls_have_no_difference() -> None:
    rows = arm_rows(
        [item("grpo", "t1", [1, 2]), item("e3", "t1", [1, 2], ids="other")], control="grpo"
    )
    assert rows[1]["pass@1_difference"] is None
    assert rows[1]["paired_problems"] == 0


def test_unknown_control_is_refused() -> None:
    with pytest.raises(ValueError, match="control='base' has no evaluation; there are "):
        arm_rows([item("e3", "t1", [1])], control="base")


def test_text_shows_percent_intervals_and_the_note() -> None:
    control, treated = item("grpo", "t1", [8] * 4), item("e3", "t1", [12] * 4)
    text = arm_table_text(arm_rows([control, treated], control="grpo"))
    assert "50.0 [15.0, 85.0]" in text  # Wilson's, with 4 problems: (1 ± 1.96/√(4 + 3.84))/2
    assert "+25.0 [+25.0, +25.0]" in text
    assert "E3" in text
    assert text.splitlines()[-1].strip() == (
        "95 % intervals over problems; Δ paired by problem; 4 problems; 1 seed"
    )
    assert "…" not in text


def test_one_seed_beside_several_of_the_control_is_told_how_far_those_are_apart() -> None:
    control = item("grpo", "t1", [8] * 4)
    seeds = [control.seeds[0].assign(correct=right) for right in (4, 8, 12)]
    several, one = replace(control, seeds=tuple(seeds)), item("e3", "t1", [12] * 4)
    text = " ".join(arm_table_text(arm_rows([several, one], control="grpo")).split())
    assert text.endswith(
        "one seed is one draw: pass@1 of grpo t1 lies between 25.0 and 75.0 % over its 3 seeds, "
        "which Δ does not count"
    )
    for arms in ([several, replace(one, seeds=one.seeds * 2)], [control, one]):
        assert "one draw" not in arm_table_text(arm_rows(arms, control="grpo"))


def test_narrow_text_wraps_and_loses_nothing() -> None:
    rows = arm_rows([item("grpo", "t1", [8, 3]), item("e3", "t1", [12, 9])], control="grpo")
    narrow = arm_table_text(rows, width=96)
    assert max(len(line) for line in narrow.splitlines()) <= 96
    words = {word for word in arm_table_text(rows).split() if "─" not in word}
    assert words <= set(narrow.split())


def test_arms_measured_on_different_problems_keep_their_column() -> None:
    rows = arm_rows([item("grpo", "t1", [8] * 4), item("e3", "t1", [12] * 6)], control="grpo")
    header, _, first, second = arm_table_markdown(rows).splitlines()[:4]
    assert header.endswith("| against | problems | paired |")
    assert first.endswith("|  | 4 |  |")
    assert second.endswith("| grpo t1 | 6 | 4 |")


def test_markdown_has_one_line_per_row_and_equal_columns() -> None:
    rows = arm_rows([item("grpo", "t1", [8] * 4), item("mine", "t1", [12] * 4)])
    lines = arm_table_markdown(rows).splitlines()
    assert [line.count("|") for line in lines[:4]] == [lines[0].count("|")] * 4
    assert lines[3].startswith("| mine | t1 | 1.00 | 0.500 | 75.0 [30.1, 95.4] |")


def test_entropy_that_was_not_recorded_is_left_out() -> None:
    unknown = replace(item("grpo", "live", [8] * 4), entropy=float("nan"))
    rows = arm_rows([unknown, item("e3", "live", [8] * 4)], control="grpo")
    assert "nan" not in arm_table_text(rows)


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ValueError, match="validate first"):
        arm_table_text([])


@pytest.mark.end_to_end
def test_study_has_a_row_per_arm_and_temperature(arms: dict[str, list[Run]]) -> None:
    named = {"mine" if arm == "e3" else arm: runs for arm, runs in arms.items()}
    evaluations = arm_evaluations(named)
    rows = arm_rows(evaluations, control="grpo")
    assert [(row["arm"], row["evaluation"]) for row in rows] == [
        (arm, name)
        for arm in ("grpo", "ts_an", "mine")
        for name in ("t1", "greedy", "live", "matched")
    ]
    assert all(row["seeds"] == 2 for row in rows)
    live = next(row for row in rows if row["arm"] == "mine" and row["evaluation"] == "live")
    assert live["against"] == "grpo live"  # no evaluation of the control has 32 rollouts
    assert np.mean(live["pass@1_by_seed"]) == pytest.approx(live["pass@1"])


def test_a_seed_that_other_seeds_of_its_arm_are_ahead_of_is_left_out_and_named(run: Run) -> None:
    early = run.problems[run.problems["rollout_step"] < 24]
    behind = replace(run, path=Path("behind"), seed=2, problems=early)
    rows = arm_rows(arm_evaluations({"e3": [run, behind]}))
    assert {row["seeds"] for row in rows} == {1}
    told = " ".join(arm_table_text(rows).split())
    assert "left out, validated last before other seeds of their arm: behind" in told
    assert "left out" not in arm_table_text(arm_rows(arm_evaluations({"e3": [run]})))

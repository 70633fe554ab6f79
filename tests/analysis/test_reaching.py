"""Cost to reach an accuracy: interpolation by hand, intervals that pair arms, what is never."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from e3rl.analysis.measures.declared import declared_rows
from e3rl.analysis.measures.families import judge_rows, read_families
from e3rl.analysis.measures.reaching import costs_to_reach
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.tables.study_cells import reaching_cells


def run_of(arm: str, seed: int, curve: list[float], every: int = 10, cost: int = 100) -> Run:
    """A run validated every `every` steps, each of which cost `cost` rollouts.

    Ten problems with ten rollouts each; pass@1 of all of them is the curve.
    """
    steps = range(len(curve))
    problems = pd.DataFrame(
        {
            "rollout_step": step * every,
            "name": "t1",
            "temperature": 1.0,
            "problem_id": f"p{i}",
            "source": "x",
            "n": 10,
            "correct": round(10 * curve[step]),
        }
        for step in steps
        for i in range(10)
    )
    total = every * (len(curve) - 1)
    train = pd.DataFrame(
        {
            "rollout_step": range(total),
            "cost/rollouts": [cost * (step + 1.0) for step in range(total)],
        }
    )
    empty = pd.DataFrame()
    return Run(Path("x"), arm, seed, {}, train, empty, empty, problems, empty, None)


def test_the_cost_is_where_the_curve_between_two_validations_is_at_the_target() -> None:
    # .4 at 0 rollouts, .6 at 1000, .7 at 2000: .5 is reached at 500, .65 at 1500.
    arms = {"grpo": [run_of("grpo", seed, [0.4, 0.6, 0.7]) for seed in (1, 2)]}
    rows = costs_to_reach(arms, None, [0.5, 0.65, 0.4, 0.8])
    costs = {row["target"]: row["cost"] for row in rows}
    assert costs[0.5] == pytest.approx(500, abs=1)
    assert costs[0.65] == pytest.approx(1500, abs=1)
    assert costs[0.4] == pytest.approx(0, abs=1e-6)
    assert math.isinf(costs[0.8])


def test_a_ratio_compares_with_the_control_and_does_not_exist_for_itself() -> None:
    slow = [run_of("grpo", seed, [0.4, 0.5, 0.6]) for seed in (1, 2)]
    fast = [run_of("ts", seed, [0.4, 0.6, 0.6]) for seed in (1, 2)]
    rows = costs_to_reach({"grpo": slow, "ts": fast}, "grpo", [0.5])
    by_arm = {row["arm"]: row for row in rows}
    assert by_arm["grpo"]["ratio"] is None
    assert by_arm["ts"]["ratio"] == pytest.approx(0.5, abs=0.01)
    # All problems are alike, so nothing is unsure.
    assert by_arm["ts"]["ratio_low"] == pytest.approx(0.5, abs=0.01)
    assert by_arm["ts"]["ratio_high"] == pytest.approx(0.5, abs=0.01)


def test_where_neither_arm_gets_there_there_is_no_ratio() -> None:
    arms = {arm: [run_of(arm, 1, [0.4, 0.5])] for arm in ("grpo", "ts")}
    rows = costs_to_reach(arms, "grpo", [0.9])
    assert [row["ratio"] for row in rows] == [None, None]
    assert all(math.isinf(row["cost"]) for row in rows)


def test_arms_on_different_problems_are_an_error_and_not_a_curve_that_never_gets_there() -> None:
    short = run_of("grpo", 2, [0.4, 0.6])
    some = dataclasses.replace(short, problems=short.problems[short.problems["problem_id"] != "p3"])
    full = run_of("grpo", 1, [0.4, 0.6])
    with pytest.raises(ValueError, match="validated on changing problems"):
        costs_to_reach({"grpo": [full, some]}, None, [0.5])
    with pytest.raises(ValueError, match="validated on different problems with t1"):
        costs_to_reach({"grpo": [full], "ts": [some]}, "grpo", [0.5])


def test_cells_are_thousands_of_rollouts_but_single_steps_and_name_their_level() -> None:
    arms = {"grpo": [run_of("grpo", seed, [0.4, 0.6]) for seed in (1, 2)]}
    for axis, title, text in (("rollouts", "cost, thousands", "0.5"), ("steps", "cost", "5.0")):
        cells = reaching_cells(costs_to_reach(arms, None, [0.5], axis=axis, level=0.9))
        assert cells.header == ["pass@1", "arm", title, "seeds"]
        assert cells.body[0][2].startswith(f"{text} [")
        assert "90 % intervals" in cells.note


def test_a_ratio_that_is_told_from_1_after_correction_has_a_star() -> None:
    slow = [run_of("grpo", seed, [0.4, 0.5, 0.6]) for seed in (1, 2)]
    fast = [run_of("ts", seed, [0.4, 0.6, 0.6]) for seed in (1, 2)]
    cells = reaching_cells(judge_rows(costs_to_reach({"grpo": slow, "ts": fast}, "grpo", [0.5])))
    ratios = [row[cells.header.index("of the control's")] for row in cells.body]
    assert ratios == ["", "0.50 [0.50, 0.50] *"]
    assert "A star: p below 0.05" in cells.note
    assert "1 comparison" in cells.note


def test_no_targets_and_a_control_without_validation_are_errors() -> None:
    arms = {"grpo": [run_of("grpo", 1, [0.4, 0.5])]}
    with pytest.raises(ValueError, match="targets is empty"):
        costs_to_reach(arms, None, [])
    for target in (40, 0.0, 1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"targets: .* is no share: give accuracies to reach"):
            costs_to_reach(arms, None, [0.5, target])
    with pytest.raises(ValueError, match="control='e3' has no evaluation t1"):
        costs_to_reach(arms, "e3", [0.5])


def late(run: Run) -> Run:
    """Without the validation before training."""
    return dataclasses.replace(run, problems=run.problems[run.problems["rollout_step"] > 0])


def test_an_accuracy_that_was_there_at_a_late_first_validation_has_no_known_cost() -> None:
    # First validated after 1000 rollouts, at .6, and at .7 after 2000.
    arms = {"grpo": [late(run_of("grpo", seed, [0.4, 0.6, 0.7])) for seed in (1, 2)]}
    words = "targets: grpo had 0.5 when it was first validated, after 1,000 rollouts sampled"
    with pytest.raises(ValueError, match=words):
        costs_to_reach(arms, None, [0.65, 0.5])
    (row,) = costs_to_reach(arms, None, [0.65])
    assert row["cost"] == pytest.approx(1500, abs=1)


def test_one_seed_that_was_validated_late_leaves_the_cost_of_its_start_unknown() -> None:
    runs = [run_of("grpo", 1, [0.4, 0.6, 0.7]), late(run_of("grpo", 2, [0.4, 0.6, 0.7]))]
    with pytest.raises(ValueError, match=r"grpo had 0\.5 when it was first validated, after 1,000"):
        costs_to_reach({"grpo": runs}, None, [0.5])


def test_there_is_no_ratio_to_a_control_that_is_there_before_the_arm_was_validated() -> None:
    slow = [late(run_of("ts", seed, [0.4, 0.5, 0.7])) for seed in (1, 2)]  # from 1000 on
    for curve, cost, ratio in (([0.4, 0.8, 0.8], 500, None), ([0.4, 0.5, 0.9], 1250, 1500 / 1250)):
        control = [run_of("grpo", seed, curve) for seed in (1, 2)]
        base, row = costs_to_reach({"grpo": control, "ts": slow}, "grpo", [0.6])
        assert (base["cost"], row["cost"]) == pytest.approx((cost, 1500), abs=1)
        assert row["ratio"] == (ratio if ratio is None else pytest.approx(ratio, abs=0.01))


def test_a_declared_arm_without_a_curve_is_named_and_not_left_out_of_the_correction() -> None:
    arms = {arm: [run_of(arm, seed, [0.4, 0.6]) for seed in (1, 2)] for arm in ("grpo", "ts")}
    late = [run_of("late", seed, [0.4, 0.6]) for seed in (1, 2)]
    arms["late"] = [
        dataclasses.replace(run, problems=run.problems[run.problems["rollout_step"] > 0])
        for run in late
    ]
    asked: dict[str, Any] = {"comparisons": [["ts", "grpo"], ["late", "grpo"]]}
    asked["endpoints"] = [{"evaluation": "t1", "reach": 0.5}]
    (family,) = read_families({"first": asked | {"axis": "rollouts"}}, arms)
    with pytest.raises(ValueError, match=r"family first: late has no curve of t1 to reach 0\.5"):
        declared_rows(arms, family)


def test_arms_that_a_family_does_not_compare_count_for_the_common_cost_alone() -> None:
    arms = {arm: [run_of(arm, seed, [0.4, 0.6]) for seed in (1, 2)] for arm in ("grpo", "ts")}
    alone = costs_to_reach(arms, "grpo", [0.45], of=["ts"])
    arms["late"] = [late(run_of("late", seed, [0.4, 0.6, 0.6])) for seed in (1, 2)]  # from 1000 on
    assert costs_to_reach(arms, "grpo", [0.45], of=["ts"]) == alone
    with pytest.raises(ValueError, match=r"targets: late had 0\.45 when it was first validated"):
        costs_to_reach(arms, "grpo", [0.45])
    arms["short"] = [run_of("short", seed, [0.4, 0.4], every=2) for seed in (1, 2)]  # 200 rollouts
    assert {row["cost"] for row in costs_to_reach(arms, "grpo", [0.45], of=["ts"])} == {math.inf}

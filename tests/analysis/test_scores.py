from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from e3rl.analysis.measures.comparison import compare_arms
from e3rl.analysis.measures.evaluations import find_evaluation
from e3rl.analysis.measures.scores import scores_at
from e3rl.analysis.sources.runs import Run
from e3rl.analysis.warnings.compared import Compared
from e3rl.analysis.warnings.validation import late_starts


def made_up(seed: int = 1, ids: str = "ab", once: bool = False) -> Run:
    """Two problems validated after 0, 10 and 30 tokens (4 rollouts each), or at the end alone."""
    steps = [2] if once else [0, 1, 2]
    right = {0: [0, 0], 1: [2, 4], 2: [4, 4]}
    rows = [
        {"rollout_step": s, "name": "t1", "problem_id": i, "source": i, "n": 4, "correct": c}
        for s in steps
        for i, c in zip(ids, right[s], strict=True)
    ]
    evaluations = [
        {"rollout_step": s, "name": "t1", "temperature": 1.0, "entropy": 0.5 - s / 10}
        for s in steps
    ]
    costs = {"cost/tokens": [10.0, 30.0], "cost/rollouts": [8.0, 16.0]}
    train = pd.DataFrame({"rollout_step": [0, 1], **costs})
    empty = pd.DataFrame()
    tables = pd.DataFrame(evaluations), pd.DataFrame(rows), empty
    return Run(Path("x"), "grpo", seed, {}, train, empty, *tables, None)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(0, [0, 0]), (5, [0.25, 0.5]), (10, [0.5, 1]), (20, [0.75, 1]), (30, [1, 1]), (99, [1, 1])],
)
def test_between_validations_every_problem_is_interpolated_in_cost(
    budget: float, expected: list[float]
) -> None:
    found = scores_at([made_up()], "t1", 1, "tokens", budget)
    assert found is not None
    assert found.table.loc[1].tolist() == pytest.approx(expected)
    assert (found.measure, found.entropy, found.n_seeds) == ("pass@1", 0.3, 1)


@pytest.mark.parametrize(
    ("axis", "budget", "expected"),
    [
        # From 0 to 10 the means are 1/4 and 1/2, from 10 to 30 they are 3/4 and 1.
        ("tokens", 30, [(10 * 0.25 + 20 * 0.75) / 30, (10 * 0.5 + 20 * 1) / 30]),
        ("tokens", 20, [(10 * 0.25 + 10 * 0.625) / 20, (10 * 0.5 + 10 * 1) / 20]),
        ("rollouts", 16, [0.5, 0.75]),
        ("steps", 2, [0.5, 0.75]),
    ],
)
def test_the_mean_over_training_is_the_area_under_the_curve(
    axis: str, budget: float, expected: list[float]
) -> None:
    found = scores_at([made_up()], "t1", 1, axis, budget, whole=True)
    assert found is not None
    assert found.table.loc[1].tolist() == pytest.approx(expected)
    assert found.measure == "mean pass@1"


def test_a_single_validation_is_taken_as_it_is_and_has_no_curve() -> None:
    found = scores_at([made_up(once=True)], "t1", 1, "tokens", 12)
    assert found is not None
    assert found.table.loc[1].tolist() == [1, 1]
    assert scores_at([made_up(once=True)], "t1", 1, "tokens", 12, whole=True) is None


def late(seed: int = 1) -> Run:
    """A run that was validated after 10 and 30 tokens alone."""
    run = made_up(seed)
    tables = {name: getattr(run, name) for name in ("evaluations", "problems")}
    return replace(run, **{name: t[t["rollout_step"] > 0] for name, t in tables.items()})


def test_below_the_cost_of_its_first_validation_a_run_has_no_score() -> None:
    assert scores_at([late()], "t1", 1, "tokens", 9) is None
    found = scores_at([late(), made_up(2)], "t1", 1, "tokens", 5)
    assert found is not None
    assert found.table.index.tolist() == [2]
    found = scores_at([late()], "t1", 1, "tokens", 10)
    assert found is not None
    assert found.table.loc[1].tolist() == [0.5, 1]


def test_beyond_its_last_validation_a_run_that_went_on_has_no_score() -> None:
    run = made_up()
    greedy = run.problems[run.problems["rollout_step"] == 2].assign(name="greedy")
    kept = {name: getattr(run, name) for name in ("evaluations", "problems")}
    kept = {name: table[table["rollout_step"] < 2] for name, table in kept.items()}
    kept["problems"] = pd.concat([kept["problems"], greedy])
    stopped = replace(run, seed=2, **kept)  # t1 ended after 10 tokens, the run after 30
    found = scores_at([made_up(), stopped], "t1", 1, "tokens", 10)
    assert found is not None
    assert found.table.loc[2].tolist() == [0.5, 1]
    found = scores_at([made_up(), stopped], "t1", 1, "tokens", 11)
    assert found is not None
    assert found.table.index.tolist() == [1]


def test_means_over_runs_begin_at_one_cost() -> None:
    found = scores_at([late()], "t1", 1, "tokens", 30, whole=True)
    assert found is not None
    assert (found.table.loc[1].tolist(), found.start) == ([0.75, 1], 10)
    assert scores_at([late(), made_up(2)], "t1", 1, "tokens", 30, whole=True) is None
    seeds = (1, 2)
    arms = {"grpo": [made_up(s) for s in seeds], "ts": [replace(late(s), name="ts") for s in seeds]}
    rows = compare_arms(arms, "grpo", [1])
    gaps = {row["measure"]: row["difference"] for row in rows if row["arm"] == "ts"}
    assert gaps == {"pass@1": 0.0, "mean pass@1": None}
    (warned,) = late_starts(Compared(arms, "grpo", rows))
    assert warned.startswith("Not validated before training: GRPO + TS. The mean over their runs")
    assert late_starts(Compared({"grpo": arms["grpo"]}, "grpo", rows)) == []


def test_what_was_not_evaluated_so_has_no_scores() -> None:
    assert scores_at([made_up()], "greedy", 1, "tokens", 30) is None
    assert scores_at([made_up()], "t1", 8, "tokens", 30) is None


def test_seeds_share_their_problems() -> None:
    found = scores_at([made_up(1, "ab"), made_up(2, "bc")], "t1", 1, "steps", 2)
    assert found is not None
    assert found.table.columns.tolist() == ["b"]
    assert found.table.index.tolist() == [1, 2]
    with pytest.raises(ValueError, match="no validation problem in common"):
        scores_at([made_up(1, "ab"), made_up(2, "cd")], "t1", 1, "steps", 2)


def test_families_are_the_tasks(arms: dict[str, list[Run]]) -> None:
    found = scores_at(arms["e3"], "t1", 1, "steps", 24)
    assert found is not None
    assert found.by_source().shape == (2, 3)
    np.testing.assert_allclose(found.by_source().mean(), found.table.to_numpy().mean())


def test_the_end_of_training_equals_the_last_evaluation(arms: dict[str, list[Run]]) -> None:
    found, last = scores_at(arms["e3"], "t1", 4, "steps", 24), find_evaluation(arms["e3"], "t1")
    assert found is not None
    assert last is not None
    assert found.table.mean(axis=1).tolist() == pytest.approx(last.by_seed(4).tolist())
    assert found.temperature == last.temperature
    assert found.entropy == pytest.approx(last.entropy)


def test_validations_with_fewer_rollouts_than_k_are_left_out() -> None:
    run = made_up()
    # 16 rollouts in the last validation only, all of the first problem's right.
    last = run.problems["rollout_step"] == 2
    run.problems.loc[last, "n"] = 16
    run.problems.loc[last, "correct"] = [16, 4]
    found = scores_at([run], "t1", 16, "tokens", 30)
    assert found is not None
    assert found.table.loc[1].tolist() == [1, 1]
    assert scores_at([run], "t1", 16, "tokens", 30, whole=True) is None
    four = scores_at([run], "t1", 4, "tokens", 20)  # half way between 10 and 30 tokens
    assert four is not None
    # pass@4 of 4 of 16: 1 - C(12,4)/C(16,4) = 1 - 495/1820.
    assert four.table.loc[1].tolist() == pytest.approx([1, (1 + 1 - 495 / 1820) / 2])


def test_no_line_is_drawn_across_validations_with_fewer_rollouts_than_k() -> None:
    run = made_up()
    # 16 rollouts before and after training, 4 between.
    for step, right in ((0, 0), (2, 16)):
        at = run.problems["rollout_step"] == step
        run.problems.loc[at, ["n", "correct"]] = [16, right]
    found = scores_at([run], "t1", 16, "tokens", 15)  # a line would say one half
    assert found is not None
    assert found.table.loc[1].tolist() == [1, 1]


def test_the_untrained_policy_is_no_score_of_a_run() -> None:
    run = made_up()
    run.problems.loc[run.problems["rollout_step"] == 0, "n"] = 16
    assert scores_at([run], "t1", 16, "tokens", 30) is None
    # Nor where it is all that was sampled so, and later validations were greedy.
    run = replace(run)
    run.problems.loc[run.problems["rollout_step"] > 0, "name"] = "greedy"
    assert scores_at([run], "t1", 1, "tokens", 30) is None


def test_a_seed_that_was_validated_on_few_of_the_problems_is_refused_and_named() -> None:
    """One of ten; the others would shrink to it."""
    run = made_up()
    ids = run.problems["problem_id"]
    ten = pd.concat(run.problems.assign(problem_id=ids + str(i)) for i in range(5))
    wide = replace(run, problems=ten)
    one = wide.problems[wide.problems["problem_id"] == "a0"]
    few = replace(wide, path=Path("few"), seed=3, problems=one)
    with pytest.raises(
        ValueError, match=r"few was validated with t1 on other .*: all have 1 of 10"
    ):
        scores_at([wide, replace(wide, seed=2), few], "t1", 1, "steps", 2)
    three = wide.problems[wide.problems["problem_id"].isin(["a0", "a1", "a2"])]
    found = scores_at([wide, replace(few, problems=three)], "t1", 1, "steps", 2)
    assert found is not None
    assert found.table.shape == (2, 3)

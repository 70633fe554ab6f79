"""Functions of the user as rewards, through the workers that run them."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from e3rl.rewards.functions import RewardFunction, build_function_rewards
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import ERROR, TIMEOUT, Verdict
from e3rl.rewards.worker import ScorerNotReadyError

pytestmark = pytest.mark.end_to_end


def pool(name: str | None = None, **settings: Any) -> RewardPool:
    path = None if name is None else f"own_rewards.{name}"
    return build_function_rewards(path, workers=1, deadline_s=20.0, **settings)


def judge(
    made: RewardPool, *completions: str, row: Mapping[str, Any] | None = None
) -> list[Verdict]:
    with made:
        for completion in completions:
            made.submit(completion, Question("p7", "1+2=?", "3", row or {}))
        return made.collect()


def test_a_file_of_the_user_pays_what_its_function_returns(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return completion == answer\n"
    )
    monkeypatch.chdir(tmp_path)
    made = build_function_rewards("mine.py:score", workers=1, deadline_s=20.0)
    monkeypatch.chdir("/")  # workers start later, wherever the trainer is then
    verdicts = judge(made, "3", "4")
    assert [(v.reward, v.status, v.answer) for v in verdicts] == [
        (1.0, "correct", "3"),
        (0.0, "wrong", "4"),
    ]


def test_a_file_may_hold_a_dataclass_and_fails_as_it_fails_by_itself(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Parsed:\n    value: int\n\n\n"
        "def score(completion, answer):\n    return Parsed(int(completion)) == Parsed(3)\n"
    )
    made = build_function_rewards("mine.py:score", workers=1, deadline_s=20.0)
    assert [verdict.reward for verdict in judge(made, "3", "4")] == [1.0, 0.0]
    before = set(sys.modules)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        RewardFunction("broken.py:score").load()
    assert set(sys.modules) == before


def test_questions_of_several_sets_with_one_id_are_judged_each_by_its_own_answer(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return completion == answer\n"
    )
    monkeypatch.chdir(tmp_path)
    with build_function_rewards("mine.py:score", workers=1, deadline_s=20.0) as made:
        for gold in ("42", "25", "42"):
            made.submit("42", Question("test:0", "6*7=?", gold, {}))
        assert [verdict.status for verdict in made.collect()] == ["correct", "wrong", "correct"]


def test_what_a_function_prints_disturbs_nothing() -> None:
    verdicts = judge(pool("talks"), "3", "4")
    assert [verdict.status for verdict in verdicts] == ["correct", "wrong"]


def test_memory_that_a_function_leaks_or_takes_costs_no_other_completion_its_reward(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "held = []\n"
        "def leaking(completion, answer):\n"
        "    held.append(bytearray(40 * 2**20))\n"
        "    return completion == answer\n"
        "def hungry(completion, answer):\n"
        "    return len(bytearray(int(completion) * 2**20)) > 0\n"
    )
    limits: dict[str, Any] = {"workers": 1, "deadline_s": 20.0, "memory_limit_mb": 128}
    leaking = build_function_rewards(f"{tmp_path / 'mine.py'}:leaking", **limits)
    assert [v.reward for v in judge(leaking, "3", "4", "5", "3 ", "6", "7", "3")][0::6] == [1, 1]
    hungry = build_function_rewards(f"{tmp_path / 'mine.py'}:hungry", **limits)
    found = [verdict.status for verdict in judge(hungry, "8", "512", "9")]
    assert found == ["correct", "error", "correct"]


def test_columns_of_the_row_are_given_by_name() -> None:
    row = {"tolerance": 0.5, "unit": "m"}
    assert [v.reward for v in judge(pool("close"), "3.4", "3.6", row=row)] == [1.0, 0.0]
    (everything,) = judge(pool("told"), "problem_id, prompt, tolerance, unit", row=row)
    assert everything.reward == 1.0
    assert [v.reward for v in judge(pool("exact"), "3", row=row)] == [1.0]  # wants none of them


def test_a_column_named_as_what_every_function_is_given_stays_out() -> None:
    row = {"answer": "We add.\n3", "completion": "4", "unit": "m"}
    (everything,) = judge(pool("told"), "problem_id, prompt, unit", row=row)
    assert everything.reward == 1.0


def test_a_column_that_problems_lack_is_named_before_a_run() -> None:
    with_it, without = Question("a", "", "1", {"tolerance": 1}), Question("b", "", "1", {"unit": 1})
    with pool("close") as made:
        made.check([with_it])
    with pool("close") as made, pytest.raises(ScorerNotReadyError, match="wants tolerance, which"):
        made.check([with_it, without])


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("own_rewards.absent", "own_rewards has no function absent"),
        ("own_rewards.not_a_function", "has no function not_a_function"),
        ("no_such_package.score", "No module named 'no_such_package'"),
    ],
)
def test_what_cannot_be_loaded_is_known_before_a_run(path: str, reason: str) -> None:
    with build_function_rewards(path, workers=1) as made:  # noqa: SIM117
        with pytest.raises(ScorerNotReadyError, match=reason):
            made.check([])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, r"reward=function needs reward.path=FILE.py:FUNCTION"),
        ({"path": "score"}, "give FILE.py:FUNCTION or package.module.FUNCTION"),
        ({"path": "absent.py:score"}, "there is no file .*absent.py; correct the path"),
        ({"path": "mine.py:"}, "'' is no name of a function"),
        ({"path": "a.b", "functions": {"c": {"path": "a.c"}}}, "either .* or .*, not both"),
        ({"path": "a.b", "correct_from": "c"}, "correct_from='c' is none of the functions: b"),
        ({"functions": {"a": {"path": "a.b", "weight": float("nan")}}}, "weight=nan .* not finite"),
        ({"path": "a.b", "batch_size": 0}, "batch_size=0; it must be at least 1"),
        ({"path": "a.b", "answer_format": "roman"}, "answer_format='roman'; choose one of"),
    ],
)
def test_settings_that_make_no_reward_are_refused(settings: dict[str, Any], reason: str) -> None:
    if settings.get("batch_size") == 0:
        settings = {"functions": {"b": {"path": "a.b", "batched": True}}, "batch_size": 0}
    with pytest.raises(ValueError, match=reason):
        build_function_rewards(**settings)


def test_what_counts_as_correct_has_to_be_said_where_a_reward_is_neither_0_nor_1() -> None:
    with pytest.raises(RuntimeError, match=r"earned 0.5.* say what counts .* reward.correct_above"):
        judge(pool("half"), "3")
    (above,) = judge(pool("half", correct_above=0.4), "3")
    (not_above,) = judge(pool("half", correct_above=0.5), "3")
    assert (above.reward, above.status) == (0.5, "correct")
    assert (not_above.reward, not_above.status) == (0.5, "wrong")


def test_several_functions_add_up_by_weight_and_are_told_apart() -> None:
    functions = {
        "right": {"path": "own_rewards.exact"},
        "brief": {"path": "own_rewards.short", "weight": 0.5},
    }
    by_sum = judge(pool(functions=functions, correct_from="right"), "3", "33", "333333")
    assert [v.reward for v in by_sum] == pytest.approx([1 + 0.5, 0.25, 0.5 / 6])
    assert [v.status for v in by_sum] == ["correct", "wrong", "wrong"]
    assert by_sum[1].parts == {"right": 0.0, "brief": 0.5, "letters": 2}
    # Without a deciding one, all that say anything by `Score.correct` must: here only `brief`.
    assert [v.status for v in judge(pool(functions=functions), "33", "333")] == ["correct", "wrong"]


def test_a_batched_function_gets_several_completions_at_a_time() -> None:
    functions = {"group": {"path": "own_rewards.in_groups", "batched": True}}
    made = pool(functions=functions, batch_size=2, correct_above=0)
    verdicts = judge(made, "a", "b", "c", row={"level": 1})
    assert [v.reward for v in verdicts] == [2.0, 2.0, 1.0]
    few = pool(functions={"few": {"path": "own_rewards.too_few", "batched": True}})
    with pytest.raises(RuntimeError, match="few returned 1 rewards for 2 completions"):
        judge(few, "a", "b")


@pytest.mark.parametrize(("bad", "status"), [("hang", TIMEOUT), ("die", ERROR)])
def test_what_hangs_or_dies_in_a_batch_costs_itself_only(bad: str, status: Verdict) -> None:
    functions = {"group": {"path": "own_rewards.in_groups", "batched": True}}
    made = build_function_rewards(
        functions=functions, batch_size=3, correct_above=0, workers=1, deadline_s=0.5
    )
    verdicts = judge(made, "a", bad, "b", row={"level": 1})
    assert [v.reward for v in verdicts] == [1.0, 0.0, 1.0]  # one by one at the second attempt
    assert verdicts[1] == status


def test_a_truth_value_of_numpy_is_a_reward() -> None:
    assert [verdict.reward for verdict in judge(pool("near"), "3", "4")] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "completion", "reason"),
    [
        ("fails", "  ", "ZeroDivisionError"),
        ("text", "x", "reward function text returned 'good': return a finite number"),
        ("says_no", "x", r"says_no returned Score\(correct='no'\): give True, False, or None"),
    ],
)
def test_what_a_function_raises_is_shown_with_the_row(
    name: str, completion: str, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason) as raised:
        judge(pool(name), completion, row={"unit": "km"})
    said = str(raised.value)
    assert "a completion of problem p7" in said
    assert f"completion: {completion!r}" in said
    assert "row: unit='km'" in said


def test_the_same_completion_of_a_problem_is_judged_once() -> None:
    with pool(
        functions={"g": {"path": "own_rewards.in_groups", "batched": True}}, correct_above=0
    ) as made:
        for problem in ("p", "p", "q"):
            made.submit("a", Question(problem, "", "3", {"level": 1}))
        assert [verdict.reward for verdict in made.collect()] == [2.0] * 3  # two tasks, together


def test_a_long_completion_has_an_answer_as_it_has_a_reward(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "mine.py").write_text(
        "def score(completion, answer):\n    return completion.endswith(answer)\n"
    )
    monkeypatch.chdir(tmp_path)
    text = 5_000 * "why " + "3"
    for settings, answered in (({}, True), ({"max_answer_chars": 20_000}, False)):
        made = build_function_rewards("mine.py:score", workers=1, deadline_s=20.0, **settings)
        (verdict,) = judge(made, text)
        assert (verdict.reward, verdict.answer is not None) == (1.0, answered)


def test_majorities_are_counted_over_answers_in_one_spelling() -> None:
    with pool("exact", answer_format="math_box") as made:
        assert made.equal([(r"\frac12", r"\dfrac{1}{2}"), ("1/2", "0.5")]) == [True, False]
        assert made.read("no box") is None

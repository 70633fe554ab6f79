"""The self-test of a reward on the gold answers of its own problems."""

import pytest

from e3rl.data.problem import Problem
from e3rl.readiness.answer_test import answers_of_others, own_spellings, run_answer_test
from e3rl.rewards.answer_reader import AnswerReader
from e3rl.rewards.maths import MathScorer, build_math_rewards
from e3rl.rewards.verdict import CORRECT, Verdict


def problem(name: str, answer: str) -> Problem:
    return Problem(id=name, prompt=f"Find {name}.", answer=answer, source="made")


INTEGERS = [problem(f"p{i}", str(i)) for i in range(5)]


def test_integers_score_in_every_box_and_on_their_own_problem_alone() -> None:
    with build_math_rewards("integer_box") as pool:
        found = run_answer_test(pool, INTEGERS)
    assert found.own == 5 * len({case.kind for case in own_spellings(INTEGERS, pool.scorer)})
    assert found.own > 5
    assert (found.others, found.lost, found.plain_lost, found.gained) == (5, [], [], [])


def generous(gold: str, answer: str) -> Verdict:
    return CORRECT


@pytest.mark.end_to_end
def test_a_generous_comparison_is_found_out() -> None:
    words = [problem("one", r"\text{odd}"), problem("two", r"\text{even}")]
    with build_math_rewards("math_box", workers=1, compare=generous) as pool:
        found = run_answer_test(pool, words)
    assert found.lost == []
    assert sorted(found.gained) == ["one: answer of two", "two: answer of one"]


@pytest.mark.end_to_end
def test_a_gold_answer_that_the_format_cannot_hold_is_named() -> None:
    with build_math_rewards("integer_box") as pool:
        found = run_answer_test(pool, [problem("a", "46"), problem("b", "1/2")])
    assert found.plain_lost == ["b"]
    assert "b: box, unparsed" in found.lost


def test_others_answer_differently() -> None:
    same = [problem("a", r"\frac{1}{2}"), problem("b", r"\dfrac{1}{2}"), problem("c", "3")]
    pairs = {
        (case.problem.id, case.kind)
        for case in answers_of_others(same, MathScorer(AnswerReader("math_box")), 3)
    }
    assert pairs == {("a", "c"), ("b", "c"), ("c", "a"), ("c", "b")}

"""Classes of equal answers: by the verifier, never by the text alone."""

from collections.abc import Iterator

import pytest
import reward_compares

from e3rl.rewards.equivalence import Answered, answer_classes
from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.scorer import Question


@pytest.fixture(scope="module")
def pool() -> Iterator[RewardPool]:
    with build_math_rewards("math_box", workers=1, deadline_s=20) as made:
        yield made


def wrong(*answers: str | None) -> list[Answered]:
    return [(answer, False) for answer in answers]


@pytest.mark.end_to_end
def test_equal_answers_are_one_class_however_they_are_written(pool: RewardPool) -> None:
    samples = wrong(r"\frac12", "0.5", r"\dfrac{1}{2}", "x = 1/2", "2", "0.50", "2.0", r"\sqrt{4}")
    assert answer_classes(pool, [samples]) == [[0, 0, 0, 0, 1, 0, 1, 1]]


def test_samples_without_an_answer_have_no_class(pool: RewardPool) -> None:
    assert answer_classes(pool, [wrong(None, "7", None, "8"), wrong(None), []]) == [
        [None, 0, None, 1],
        [None],
        [],
    ]


def test_all_right_answers_are_one_class_and_never_one_with_a_wrong_one(pool: RewardPool) -> None:
    # 12+34 restates the question: equal in value, but the verifier gave it nothing.
    samples = [("46", True), ("12+34", False), (r"\text{46}", True), ("47", False), (".", False)]
    assert answer_classes(pool, [samples]) == [[0, 1, 0, 2, 3]]


def test_problems_do_not_share_classes(pool: RewardPool) -> None:
    assert answer_classes(pool, [wrong("3", r"\pi"), wrong(r"\pi", "3", "3.0")]) == [
        [0, 1],
        [0, 1, 1],
    ]


def test_integers_need_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with build_math_rewards("integer_box") as integers:
        monkeypatch.setattr(integers._workers, "schedule", lambda *_: pytest.fail("compared"))
        samples = [("7", False), ("007", False), ("-7", False), ("8", True), (None, False)]
        assert answer_classes(integers, [samples]) == [[0, 0, 1, 2, None]]


def test_one_direction_is_enough_and_nothing_is_counted() -> None:
    with build_math_rewards("math_box", workers=1, compare=reward_compares.scripted) as scripted:
        scripted.submit(r"\boxed{a b}", Question("", "", "b"))
        # `a b` ends in `b`, which is right only with `b` as the gold answer.
        assert answer_classes(scripted, [wrong("a b", "c", "b")]) == [[0, 1, 0]]
        assert sum(scripted.counters.values()) == 0
        assert [verdict.status for verdict in scripted.collect()] == ["correct"]


@pytest.mark.end_to_end
def test_what_cannot_be_compared_in_time_is_not_equal() -> None:
    hurried = build_math_rewards(
        "math_box", workers=1, deadline_s=0.3, compare=reward_compares.scripted
    )
    with hurried:
        assert answer_classes(hurried, [wrong("hang b", "b")]) == [[0, 1]]

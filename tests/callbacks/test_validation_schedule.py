"""Evaluations and the rounds they are sampled in."""

from typing import Any

import pytest
from scripted import scored_batch

from e3rl.batch import RolloutBatch
from e3rl.callbacks.validation_schedule import Evaluation, Segment, ValidationSchedule
from e3rl.data.loader import collate


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "use a word"),
        ({"name": "a/b"}, "without slashes"),
        ({"name": "t", "n": 0}, "n=0, use at least 1"),
        ({"name": "t", "temperature": -0.5}, r"temperature=-0.5, use 0 \(greedy\) or more"),
        ({"name": "t", "temperature": float("nan")}, "temperature=nan, use 0"),
        ({"name": "t", "temperature": 0.0}, "n=16 greedy rollouts are all alike, use 1"),
        ({"name": "t", "n": 1, "temperature": 0.0, "last_n": 4}, "last_n=4 greedy rollouts are"),
        ({"name": "t", "last_n": 0}, "last_n=0, use at least 1"),
        ({"name": "t", "entropy": 0.0}, "entropy=0.0, use more than 0"),
        ({"name": "t", "temperature": 1.0, "entropy": 0.3}, "not both"),
        ({"name": "t", "top_p": 0.0}, "top_p=0.0, use more than 0 and at most 1"),
        ({"name": "t", "top_p": 1.1}, "top_p=1.1, use more than 0 and at most 1"),
        ({"name": "t", "top_k": -1}, "top_k=-1, use a number of tokens, or 0"),
        ({"name": "t", "n": 1, "temperature": 0.0, "top_p": 0.9}, "whatever top_p and top_k"),
    ],
)
def test_an_evaluation_says_what_is_wrong_with_it(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluation(**arguments)


def test_known_temperatures_share_the_first_round() -> None:
    plan = ValidationSchedule(
        [
            Evaluation("t1", n=4, temperature=1.0),
            Evaluation("greedy", n=1, temperature=0.0),
            Evaluation("live", n=3),
        ]
    )
    batch = empty(2)
    plan.begin(batch, live=0.7)
    assert plan.next(batch) == [8, 8]
    assert plan.segments == [
        Segment("t1", 0, 4, 1.0),
        Segment("greedy", 4, 1, 0.0),
        Segment("live", 5, 3, 0.7),
    ]
    taus = plan.temperature_of([0] * 8, list(range(8)))
    assert taus == [1.0] * 4 + [0.0] + [0.7] * 3
    assert plan.next(batch) is None


def test_what_would_be_sampled_like_another_evaluation_takes_its_rollouts() -> None:
    plan = ValidationSchedule(
        [
            Evaluation("t1", n=4, temperature=1.0),
            Evaluation("more", n=5, temperature=1.0),
            Evaluation("nucleus", n=3, temperature=1.0, top_p=0.9),
            Evaluation("live", n=3),
            Evaluation("hot", n=2, temperature=1.3),
        ]
    )
    batch = empty(2)
    plan.begin(batch, live=1.0)
    assert plan.next(batch) == [4 + 5 + 3 + 2] * 2
    assert plan.segments == [
        Segment("t1", 0, 4, 1.0),
        Segment("more", 4, 5, 1.0),  # t1 has too few
        Segment("nucleus", 9, 3, 1.0, 0.9),
        Segment("live", 0, 3, 1.0, shared_with="t1"),
        Segment("hot", 12, 2, 1.3),
    ]
    assert plan.temperature_of([0] * 14, list(range(14))) == [1.0] * 12 + [1.3] * 2
    assert plan.next(batch) is None
    plan.begin(batch, live=1.1)
    assert plan.next(batch) == [4 + 5 + 3 + 3 + 2] * 2


def test_a_live_temperature_that_meets_anothers_moves_no_sample_of_the_others() -> None:
    """In any order, evaluations with a temperature of their own have the same sample indices."""
    own = [
        Evaluation("t1", n=4, temperature=1.0),
        Evaluation("t06", n=4, temperature=0.6),
    ]
    live, batch = Evaluation("live", n=4), empty(1)
    for place in range(3):
        evaluations = [*own[:place], live, *own[place:]]
        plan, found = ValidationSchedule(evaluations), []
        for temperature in (1.0, 0.9):
            plan.begin(batch, live=temperature).next(batch)
            assert [s.evaluation for s in plan.segments] == [e.name for e in evaluations]
            found.append({s.evaluation: (s.start, s.shared_with) for s in plan.segments})
        others = {"t1": (0, None), "t06": (4, None)}
        assert found == [others | {"live": (0, "t1")}, others | {"live": (8, None)}]


def empty(n_prompts: int) -> RolloutBatch:
    full = scored_batch([[(1.0, [-1.0])]] * n_prompts)
    fresh = collate([], lambda _: ("", []), ("validation",))
    fresh.prompt_ids, fresh.prompts, fresh.answers = full.prompt_ids, full.prompts, full.answers
    fresh.sources, fresh.prompt_tokens = full.sources, full.prompt_tokens
    return fresh


def test_truncation_belongs_to_an_evaluation() -> None:
    plan = ValidationSchedule(
        [
            Evaluation("t1", n=2, temperature=1.0),
            Evaluation("nucleus", n=2, temperature=1.0, top_p=0.9, top_k=20),
        ]
    )
    batch = empty(2)
    plan.begin(batch, live=1.0)
    assert plan.next(batch) == [4, 4]
    assert plan.truncation_of([0] * 4, list(range(4))) == [(1.0, 0)] * 2 + [(0.9, 20)] * 2


def test_without_evaluations_nothing_is_sampled() -> None:
    plan = ValidationSchedule([])
    assert plan.begin(empty(2), live=1.0).next(empty(2)) is None

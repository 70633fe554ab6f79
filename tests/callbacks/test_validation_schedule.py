"""Evaluations and the rounds they are sampled in."""

from typing import Any

import pytest
from scripted import scored_batch

from e3rl.batch import Rollout, RolloutBatch, RolloutScore
from e3rl.callbacks.validation_schedule import (
    PILOT_ROLLOUTS_PER_PROMPT,
    Evaluation,
    Segment,
    ValidationSchedule,
)
from e3rl.data.loader import collate


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "use a word"),
        ({"name": "a/b"}, "without slashes"),
        ({"name": "t", "n": 0}, "n=0, use at least 1"),
        ({"name": "t", "temperature": -0.5}, r"temperature=-0.5, use 0 \(greedy\) or more"),
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


@pytest.mark.parametrize(("prompts", "each"), [(3, 4), (64, 4), (100, 2), (256, 1), (300, 1)])
def test_pilots_of_many_prompts_take_fewer_rollouts_of_each(prompts: int, each: int) -> None:
    plan = ValidationSchedule([Evaluation("matched", n=8, entropy=0.6)])
    batch = empty(prompts)
    plan.begin(batch, live=1.0)
    assert plan.next(batch) == [each] * prompts


def empty(n_prompts: int) -> RolloutBatch:
    full = scored_batch([[(1.0, [-1.0])]] * n_prompts)
    fresh = collate([], lambda _: ("", []), ("validation",))
    fresh.prompt_ids, fresh.prompts, fresh.answers = full.prompt_ids, full.prompts, full.answers
    fresh.sources, fresh.prompt_tokens = full.sources, full.prompt_tokens
    return fresh


def answer(batch: RolloutBatch, plan: ValidationSchedule, counts: list[int], slope: float) -> None:
    """Give every rollout two tokens with log-probs -slope * tau."""
    start = int(batch.group_sizes[0])
    rollouts = []
    for row, count in enumerate(counts):
        for j in range(start, start + count):
            (tau,) = plan.temperature_of([row], [j])
            logprobs = (-slope * tau,) * 2
            rollouts.append(Rollout(row, j, (1,), (7, 7), logprobs, tau, False, "", 0))
    batch.extend(rollouts, [RolloutScore(1.0, 1.0)] * len(rollouts), pad=0)


def run(plan: ValidationSchedule, batch: RolloutBatch, slope: float) -> list[list[int]]:
    plan.begin(batch, live=1.0)
    rounds = []
    while (counts := plan.next(batch)) is not None:
        rounds.append(counts)
        answer(batch, plan, counts, slope)
    return rounds


def test_pilots_look_for_the_temperature_and_are_no_evaluation() -> None:
    matched = Evaluation("matched", n=8, entropy=0.6)
    plan = ValidationSchedule([Evaluation("t1", n=4, temperature=1.0), matched])
    batch = empty(3)
    rounds = run(plan, batch, slope=0.4)  # H = 0.4 tau, so 0.6 at tau = 1.5
    assert rounds[0] == [4 + PILOT_ROLLOUTS_PER_PROMPT] * 3
    assert rounds[-1] == [8] * 3
    pilots = [s for s in plan.segments if not s.evaluation]
    assert 1 <= len(pilots) <= 5
    assert all(s.n == PILOT_ROLLOUTS_PER_PROMPT for s in pilots)
    assert [s.evaluation for s in plan.segments if s.evaluation] == ["t1", "matched"]
    assert plan.segments[-1].temperature == pytest.approx(1.5, rel=0.01)
    ends = [s.start + s.n for s in plan.segments]
    assert [s.start for s in plan.segments] == [0, *ends[:-1]]  # no sample twice, none left out


def test_later_batches_use_the_temperature_that_the_first_one_found() -> None:
    plan = ValidationSchedule([Evaluation("matched", n=8, entropy=0.6)])
    run(plan, empty(3), slope=0.4)
    found = plan.segments[-1].temperature
    assert run(plan, empty(2), slope=0.1) == [[8, 8]]
    assert plan.segments == [Segment("matched", 0, 8, found)]


def test_two_entropies_are_searched_for_one_after_the_other() -> None:
    plan = ValidationSchedule(
        [Evaluation("low", n=2, entropy=0.3), Evaluation("high", n=2, entropy=0.6)]
    )
    run(plan, empty(2), slope=0.4)
    found = {s.evaluation: s.temperature for s in plan.segments if s.evaluation}
    assert found == {
        "low": pytest.approx(0.75, rel=0.01),
        "high": pytest.approx(1.5, rel=0.01),
    }


def test_truncation_belongs_to_an_evaluation_and_to_its_pilots() -> None:
    plan = ValidationSchedule(
        [
            Evaluation("t1", n=2, temperature=1.0),
            Evaluation("nucleus", n=2, temperature=1.0, top_p=0.9, top_k=20),
            Evaluation("matched", n=2, entropy=0.6, top_p=0.8),
        ]
    )
    run(plan, empty(2), slope=0.4)
    cuts = plan.truncation_of([0] * 9, list(range(9)))
    assert cuts[:4] == [(1.0, 0)] * 2 + [(0.9, 20)] * 2
    assert set(cuts[4:]) == {(0.8, 0)}


def test_without_evaluations_nothing_is_sampled() -> None:
    plan = ValidationSchedule([])
    assert run(plan, empty(2), slope=0.4) == []

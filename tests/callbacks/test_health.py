"""What makes no sense any more is said once, with the remedy."""

import re

import pytest

from e3rl.callbacks.health import FIRST_STEPS, IDLE_STEPS, RunHealth

FINE = {"rollout/mixed": 0.5, "rollout/all_wrong": 0.25, "rollout/all_right": 0.25}
FINE |= {"policy/entropy": 0.4, "rollout/temperature": 1.0}


def begun() -> RunHealth:
    health = RunHealth()
    for _ in range(FIRST_STEPS):
        assert health.remarks(FINE) == []
    return health


@pytest.mark.parametrize(
    ("odd", "remark"),
    [
        ({"policy/entropy": 1.21}, "entropy is 1.21 nats per token, and was 0.4 .*unlearns.*lr"),
        ({"policy/entropy": 0.019}, "entropy is 0.019 .*nearly alike.*temperature=entropy_target"),
        ({"rollout/temperature": 2.01}, r"temperature 2\.01, outside of 0\.25 to 2\.0.*fixed"),
        ({"rollout/temperature": 0.2}, r"temperature 0\.20"),
        (
            {"rollout/n": 256, "reward/timeout": 20, "reward/error": 6},
            "20 of 256 answers took more than their time, and 6 .*deadline_s or .*memory_limit_mb",
        ),
    ],
)
def test_what_is_out_of_control_is_said_once(odd: dict[str, float], remark: str) -> None:
    health = begun()
    assert health.remarks(FINE | {"policy/entropy": 1.19, "rollout/temperature": 1.99}) == []
    assert health.remarks(FINE | {"rollout/n": 256, "reward/timeout": 20, "reward/error": 5}) == []
    (said,) = health.remarks(FINE | odd)

    assert re.search(remark, said)
    assert health.remarks(FINE | odd) == []


def test_steps_without_a_signal_are_counted_in_a_row() -> None:
    idle = FINE | {"rollout/mixed": 0.0, "rollout/all_wrong": 0.75}
    health = RunHealth()
    for _ in range(IDLE_STEPS - 1):
        assert health.remarks(idle) == []
    assert health.remarks(FINE) == []
    for _ in range(IDLE_STEPS - 1):
        assert health.remarks(idle) == []
    (said,) = health.remarks(idle)
    assert "for 16 steps no prompt has had both right and wrong answers (75% all wrong" in said
    assert "e3rl preflight" in said


def test_a_run_that_goes_on_says_nothing_twice_and_forgets_no_start() -> None:
    health = begun()
    assert len(health.remarks(FINE | {"rollout/temperature": 3.0})) == 1
    other = RunHealth()
    other.load_state_dict(health.state_dict())
    assert other.remarks(FINE | {"rollout/temperature": 3.0}) == []
    assert len(other.remarks(FINE | {"policy/entropy": 2.0})) == 1


def test_rows_without_an_entropy_say_nothing_of_it() -> None:
    assert RunHealth().remarks({"rollout/mixed": 1.0, "policy/entropy": float("nan")}) == []

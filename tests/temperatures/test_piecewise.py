"""Stages of the run: where each begins, in parts of the run and in steps, and what resumes."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.temperatures.base import EntropyReading
from e3rl.temperatures.piecewise import Piecewise


def played(rule: Piecewise, steps: int) -> list[float]:
    return [rule.decide(step).temperature for step in range(steps)]


def reading(step: int) -> EntropyReading:
    return EntropyReading(step, 1.0, 0.5, 10)


def test_stages_in_parts_of_the_run_begin_at_the_step_after_that_part() -> None:
    rule = Piecewise([1.4, 1.45, 1.5], [0.0, 0.34, 0.5])
    rule.bind(10)
    assert played(rule, 10) == [1.4] * 4 + [1.45] + [1.5] * 5
    rule.bind(20)  # a resumed run may be longer
    assert played(rule, 20) == [1.4] * 7 + [1.45] * 3 + [1.5] * 10


def test_rounding_in_floating_point_does_not_delay_a_stage() -> None:
    assert 0.07 * 100 > 7
    rule = Piecewise([1.0, 2.0], [0.0, 0.07])
    rule.bind(100)
    assert played(rule, 8) == [1.0] * 7 + [2.0]


def test_stages_in_steps_need_no_length_of_the_run() -> None:
    assert played(Piecewise([0.7, 1.0], [0, 3], unit="step"), 5) == [0.7] * 3 + [1.0] * 2


def test_parts_of_a_run_of_unknown_length_are_an_error() -> None:
    rule = Piecewise([1.0, 1.1], [0.0, 0.5])
    assert rule.decide(0).temperature == 1.0  # the baseline is validated before training
    with pytest.raises(RuntimeError, match="call bind"):
        rule.decide(1)


@pytest.mark.parametrize("lookahead", [0, 1])
def test_metrics_tell_the_temperature_that_is_decided_next(lookahead: int) -> None:
    rule = Piecewise([0.7, 1.0], [0, 3], unit="step")
    rule.bind(9, lookahead)
    told = []
    for step in range(4):
        rule.observe(reading(step))
        told.append(rule.metrics())
    values = [0.7] * (2 - lookahead) + [1.0] * (2 + lookahead)
    assert [row["value"] for row in told] == values
    assert [row["stage"] for row in told] == [float(value == 1.0) for value in values]


def test_a_resumed_run_reports_the_stage_that_it_had_reached() -> None:
    rule = Piecewise([0.7, 1.0], [0, 3], unit="step")
    rule.observe(reading(4))
    other = Piecewise([0.7, 1.0], [0, 3], unit="step")
    other.load_state_dict(rule.state_dict())
    assert other.metrics() == rule.metrics() == {"value": 1.0, "stage": 1.0}
    with pytest.raises(ValueError, match=r"state of Piecewise: unknown keys \['x'\]"):
        other.load_state_dict({"x": 1})


@given(
    starts=st.lists(st.floats(0.001, 0.999), max_size=5, unique=True).map(sorted),
    total=st.integers(1, 60),
)
@settings(deadline=None, max_examples=60)
def test_every_step_has_the_last_stage_that_has_begun(starts: list[float], total: int) -> None:
    starts = [0.0, *starts]
    temperatures = [1.0 + stage for stage in range(len(starts))]
    rule = Piecewise(temperatures, starts)
    rule.bind(total)
    for step, temperature in enumerate(played(rule, total)):
        begun = [t for t, start in zip(temperatures, starts, strict=True) if start * total <= step]
        assert temperature == begun[-1]


@pytest.mark.parametrize(
    ("temperatures", "starts", "unit", "message"),
    [
        ([], [], "run", "give one or more, each above 0"),
        ([1.0, 0.0], [0, 0.5], "run", "each above 0"),
        ([1.0, math.nan], [0, 0.5], "run", "each above 0"),
        ([1.0, math.inf], [0, 0.5], "run", "each above 0"),
        ([1.0, 1.1], [0.0], "run", "2 temperatures and 1 starts"),
        ([1.0, 1.1], [0.1, 0.5], "run", "must rise from 0"),
        ([1.0, 1.1, 1.2], [0.0, 0.5, 0.5], "run", "must rise from 0"),
        ([1.0, 1.1], [0.0, 64.0], "run", "for rollout steps set unit=step"),
        ([1.0, 1.1], [0, 0.5], "step", "for parts of the run set unit=run"),
        ([1.0, 1.1], [0, math.inf], "step", "are rollout steps, whole numbers"),
        ([1.0], [0.0], "epoch", "use run .* or step"),
    ],
)
def test_stages_that_make_no_schedule_are_refused(
    temperatures: Sequence[float], starts: Sequence[float], unit: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Piecewise(temperatures, starts, unit)  # type: ignore[arg-type]

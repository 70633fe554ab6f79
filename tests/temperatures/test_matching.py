"""Finding the temperature of a given entropy."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_plant import Plant

from e3rl.temperatures.matching import EntropyMatcher


def search(matcher: EntropyMatcher, entropy_at: object) -> list[float]:
    """Temperatures measured until the search is over."""
    measured = []
    while not matcher.done:
        measured.append(matcher.temperature)
        matcher.observe(measured[-1], entropy_at(measured[-1]))  # type: ignore[operator]
    return measured


def test_the_search_starts_at_one_and_steps_by_the_guessed_elasticity() -> None:
    matcher = EntropyMatcher(0.5)
    assert matcher.temperature == 1.0
    assert not matcher.done
    matcher.observe(1.0, 0.25)
    assert matcher.temperature == pytest.approx(2 ** (1 / 0.7))


def test_two_sides_are_joined_in_logarithms() -> None:
    matcher = EntropyMatcher(0.4)
    matcher.observe(1.0, 0.2)
    matcher.observe(4.0, 0.8)
    assert matcher.temperature == pytest.approx(2.0)  # half way in ln tau, as in ln H


def test_a_first_hit_ends_the_search() -> None:
    matcher = EntropyMatcher(0.4, tolerance=0.01)
    matcher.observe(1.0, 0.4039)
    assert matcher.done
    other = EntropyMatcher(0.4, tolerance=0.01)
    other.observe(1.0, 0.405)
    assert not other.done


@settings(deadline=None, max_examples=60)
@given(
    target=st.floats(0.15, 1.2),
    scale=st.floats(0.2, 0.9),
    elasticity=st.floats(0.5, 1.6),
)
def test_power_laws_are_matched_within_five_measurements(
    target: float, scale: float, elasticity: float
) -> None:
    wanted = (target / scale) ** (1 / elasticity)
    matcher = EntropyMatcher(target, bounds=(0.01, 100.0))
    measured = search(matcher, lambda tau: scale * tau**elasticity)
    assert len(measured) <= 5
    assert matcher.temperature == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize("target", [0.5, 1.0, 2.0, 3.0])
def test_a_softmax_is_matched_within_the_tolerance(target: float) -> None:
    plant = Plant()
    matcher = EntropyMatcher(target, tolerance=0.01)
    measured = search(matcher, lambda tau: plant.moments(tau)[0])
    assert len(measured) <= 5
    assert plant.moments(matcher.temperature)[0] == pytest.approx(target, rel=0.01)


def test_an_entropy_out_of_reach_ends_at_a_bound_after_the_last_measurement() -> None:
    matcher = EntropyMatcher(50.0, max_pilots=4, bounds=(0.2, 4.0))
    measured = search(matcher, lambda tau: 0.4 * tau)
    assert len(measured) == 4
    assert matcher.temperature == pytest.approx(4.0)


def test_a_policy_that_has_become_deterministic_sends_it_upwards() -> None:
    matcher = EntropyMatcher(0.4)
    matcher.observe(1.0, 0.0)
    assert matcher.temperature == pytest.approx(4.0)
    assert math.isfinite(matcher.temperature)


def test_noise_that_turns_the_order_round_does_not_leave_the_neighbourhood() -> None:
    matcher = EntropyMatcher(0.4)
    matcher.observe(1.0, 0.41)  # above the target at the lower temperature
    matcher.observe(1.02, 0.39)
    assert 0.9 < matcher.temperature < 1.2


@pytest.mark.parametrize("target", [0.0, -0.3])
def test_an_entropy_that_no_sampler_has_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="must be > 0 nats"):
        EntropyMatcher(target)

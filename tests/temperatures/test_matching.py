"""Reading a policy at a given entropy."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from softmax_plant import Plant

from e3rl.temperatures.matching import (
    MATCHED_WITHIN,
    WIDEST,
    EntropyMatcher,
    read_at_entropy,
)


def search(matcher: EntropyMatcher, entropy_at: object) -> list[float]:
    """Temperatures evaluated until the search is over."""
    evaluated = []
    while (temperature := matcher.next()) is not None:
        evaluated.append(temperature)
        matcher.observe(temperature, entropy_at(temperature))  # type: ignore[operator]
    return evaluated


def test_an_entropy_is_read_on_a_line_in_its_logarithm() -> None:
    reading = read_at_entropy({"a": 0.40, "b": 0.44, "far": 0.8}, 0.42)
    share = math.log(0.42 / 0.40) / math.log(0.44 / 0.40)
    assert reading.weights == pytest.approx({"a": 1 - share, "b": share})
    assert reading.entropy == 0.42


def test_an_evaluation_at_the_very_entropy_needs_no_other() -> None:
    reading = read_at_entropy({"a": 0.40, "b": 0.42}, 0.42)
    assert (reading.weights, reading.entropy) == ({"b": 1.0}, 0.42)


@pytest.mark.parametrize(
    ("entropies", "nearest"),
    [
        ({1.0: 0.30, 1.1: 0.39}, 1.1),  # nothing above
        ({1.0: 0.45, 1.1: 0.50}, 1.0),  # nothing below
        ({1.0: 0.38, 1.1: 0.43}, 1.1),  # 13 % apart: a curve is no line
        ({1.0: 0.38, 1.1: 0.42}, 1.1),  # 10.5 %
    ],
)
def test_what_is_not_enclosed_closely_is_the_nearest_and_says_its_entropy(
    entropies: dict[float, float], nearest: float
) -> None:
    reading = read_at_entropy(entropies, 0.41)
    assert reading.weights == {nearest: 1.0}
    assert reading.entropy == entropies[nearest]


def test_without_any_entropy_there_is_nothing_to_read() -> None:
    with pytest.raises(ValueError, match="no evaluation above temperature 0"):
        read_at_entropy({"greedy": 0.0}, 0.4)


def test_the_search_starts_at_one_and_steps_over_the_entropy() -> None:
    matcher = EntropyMatcher(0.30)
    assert matcher.next() == 1.0
    matcher.observe(1.0, 0.26)
    assert matcher.next() == 1.16  # 1.05 ** 3, the first above .30 / .26 = 1.154
    matcher.observe(1.16, 0.26 * 1.16**1.4)  # .320: too far from .26 for a line
    assert matcher.next() == 1.1
    matcher.observe(1.1, 0.26 * 1.1**1.4)
    assert matcher.next() is None
    assert set(matcher.reading.weights) == {1.1, 1.16}
    assert 0.26 * matcher.temperature**1.4 == pytest.approx(0.30, rel=1e-3)


def test_a_second_entropy_takes_the_evaluations_of_the_first() -> None:
    first = EntropyMatcher(0.31)
    search(first, lambda tau: 0.26 * tau**1.4)
    second = EntropyMatcher(0.305, first.entropies)
    assert second.next() is None


@settings(deadline=None, max_examples=60)
@example(target=0.16, scale=0.876953125, elasticity=1.3410898179951114)  # just above a power
@given(
    target=st.floats(0.15, 1.2),
    scale=st.floats(0.2, 0.9),
    elasticity=st.floats(0.5, 1.6),
)
def test_power_laws_are_enclosed_within_eight_evaluations(
    target: float, scale: float, elasticity: float
) -> None:
    wanted = (target / scale) ** (1 / elasticity)
    matcher = EntropyMatcher(target, bounds=(0.01, 100.0))
    evaluated = search(matcher, lambda tau: scale * tau**elasticity)
    assert len(evaluated) <= 8
    assert matcher.reading.entropy == target
    assert matcher.temperature == pytest.approx(wanted, rel=1e-4)


@settings(deadline=None, max_examples=40)
@given(
    wanted=st.floats(0.35, 2.5),
    noise=st.sampled_from([0.0005, 0.001, 0.002, 0.005, 0.01]),
    seed=st.integers(0, 10_000),
)
def test_a_noisy_policy_is_matched_within_its_noise_or_not_at_all(
    wanted: float, noise: float, seed: int
) -> None:
    """The entropy that the weighted evaluations truly have is off by no more than the noise of
    both sides says (five standard errors), and by less than .1 % through the line."""
    plant, rng = Plant(), np.random.default_rng(seed)

    def measured(tau: float) -> float:
        return plant.moments(tau)[0] * math.exp(rng.normal(scale=noise))

    arm = plant.moments(wanted)[0]
    matcher = EntropyMatcher(measured(wanted))
    assert len(search(matcher, measured)) <= 8
    reading = matcher.reading
    if abs(reading.entropy / matcher.target - 1) > 0.005:
        assert noise >= 0.005  # less never hides what encloses it; its entropy says so
        return
    true = math.exp(sum(w * math.log(plant.moments(t)[0]) for t, w in reading.weights.items()))
    known = noise * math.sqrt(1 + sum(w**2 for w in reading.weights.values()))
    assert abs(math.log(true / arm)) <= 5 * known + 0.001


def test_errors_above_half_a_per_cent_are_rare_or_announced() -> None:
    plant = Plant()
    for noise, announced in ((0.0015, False), (0.005, True)):
        rng = np.random.default_rng(5)
        missed = matched = 0
        for wanted in np.linspace(0.5, 2.0, 100):
            target = plant.moments(wanted)[0] * math.exp(rng.normal(scale=noise))
            matcher = EntropyMatcher(target)
            search(
                matcher,
                lambda tau: plant.moments(tau)[0] * math.exp(rng.normal(scale=noise)),  # noqa: B023
            )
            weights = matcher.reading.weights
            matched += matcher.reading.entropy == target
            true = math.exp(sum(w * math.log(plant.moments(t)[0]) for t, w in weights.items()))
            missed += abs(true / plant.moments(wanted)[0] - 1) > MATCHED_WITHIN
            half_width = 1.96 * noise * math.sqrt(1 + sum(w**2 for w in weights.values()))
            assert (half_width > MATCHED_WITHIN) == announced
        assert announced or missed <= 3
        assert matched >= 97


def test_an_entropy_out_of_reach_is_not_called_matched() -> None:
    matcher = EntropyMatcher(50.0, bounds=(0.2, 4.0))
    evaluated = search(matcher, lambda tau: 0.4 * tau)
    assert max(evaluated) == 4.0
    assert len(evaluated) <= 3
    assert matcher.reading.entropy == pytest.approx(1.6)


def test_a_policy_that_has_become_deterministic_sends_it_upwards() -> None:
    matcher = EntropyMatcher(0.4)
    matcher.observe(1.0, 0.0)
    assert matcher.next() == EntropyMatcher(0.4, {1.0: 0.0}).next() == 4.0


def test_no_temperature_is_asked_for_twice() -> None:
    matcher = EntropyMatcher(0.55)
    for temperature, entropy in ((1.0, 0.50), (1.05, 0.48), (1.1, 0.60)):  # noise in the second
        matcher.observe(temperature, entropy)
    found = search(matcher, lambda temperature: 0.48)
    assert len({1.0, 1.05, 1.1, *found}) == 3 + len(found)


def test_noise_that_turns_the_order_round_ends_in_time() -> None:
    entropies = iter([0.41 + 0.01 * i for i in range(8)])
    matcher = EntropyMatcher(0.4)
    assert len(search(matcher, lambda tau: next(entropies))) <= 8
    assert matcher.reading.entropy == 0.41


def test_a_steep_entropy_is_enclosed_between_the_usual_temperatures() -> None:
    matcher = EntropyMatcher(0.5)
    search(matcher, lambda tau: 0.4 * tau**4)
    low, high = sorted(matcher.reading.weights)
    assert (high / low) ** 4 - 1 <= WIDEST


@pytest.mark.parametrize("target", [0.0, -0.3])
def test_an_entropy_that_no_sampler_has_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="must be > 0 nats"):
        EntropyMatcher(target)
    with pytest.raises(ValueError, match="must be > 0 nats"):
        read_at_entropy({1.0: 0.3}, target)

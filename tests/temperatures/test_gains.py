import math

import pytest
from softmax_plant import Plant

from e3rl.temperatures.base import EntropyReading
from e3rl.temperatures.gains import ElasticityGain, PaperGain, SolveGain

BARE = EntropyReading(step=3, temperature=1.0, sampled=0.5, tokens=10)


def measured(exact: float, varentropy: float) -> EntropyReading:
    return EntropyReading(0, 1.0, exact, 10, exact=exact, varentropy=varentropy)


@pytest.mark.parametrize(
    ("vocabulary", "tau", "target", "entropy", "expected"),
    [
        (151936, 1.0, 0.76, 0.60, 1.016404),
        (151936, 1.2, 0.76, 0.60, 1.223622),
        (128, 1.0, 0.5, 0.25, 1.107775),
        (128, 1.0, 0.25, 0.5, 0.892225),
    ],
)
def test_paper_gain_golden_values(
    vocabulary: int, tau: float, target: float, entropy: float, expected: float
) -> None:
    gain = PaperGain(vocabulary)
    gain.observe(BARE)
    assert gain.step(tau, math.log(target / entropy)) == pytest.approx(expected, abs=5e-7)


def test_every_gain_stays_put_when_the_entropy_is_on_target() -> None:
    reading = Plant().read(0.9)
    for gain in (PaperGain(64), ElasticityGain(), SolveGain(), SolveGain(mu=0.5)):
        gain.observe(reading)
        assert gain.step(0.9, 0.0) == pytest.approx(0.9, abs=1e-12)


def test_elasticity_gain_divides_by_the_measured_elasticity() -> None:
    gain = ElasticityGain(mu=0.5, ema=0.0)
    gain.observe(measured(exact=0.8, varentropy=0.2))  # ε = 1/4
    assert gain.step(1.1, 0.1) == pytest.approx(1.1 * math.exp(0.5 * 0.1 * 4))


def test_elasticity_is_of_the_entropy_that_was_measured_with_the_varentropy() -> None:
    """The sampled one, of other tokens, is not 1/4 of it but 1/2."""
    gain = ElasticityGain(mu=0.5, ema=0.0)
    gain.observe(EntropyReading(0, 1.0, sampled=0.4, tokens=10, exact=0.8, varentropy=0.2))
    assert gain.step(1.0, 0.1) == pytest.approx(math.exp(0.5 * 0.1 * 4))


def test_elasticity_is_smoothed_over_steps() -> None:
    gain = ElasticityGain(mu=1.0, ema=0.75)
    gain.observe(measured(1.0, 0.4))
    gain.observe(measured(1.0, 0.8))  # 0.75·0.4 + 0.25·0.8 = 0.5
    assert gain.step(1.0, 0.1) == pytest.approx(math.exp(0.1 / 0.5))


def test_elasticity_gain_stays_finite_on_a_deterministic_policy() -> None:
    gain = ElasticityGain(mu=0.4)
    gain.observe(measured(0.0, 0.0))
    assert gain.step(1.0, 0.5) == pytest.approx(math.exp(0.4 * 0.5 / 0.05))


def test_solve_gain_finds_the_temperature_of_a_power_law_exactly() -> None:
    # H = 0.6·τ²: the entropy doubles at √2 times the temperature.
    curve = tuple((tau, 0.6 * tau**2) for tau in (0.5, 1.0, 2.0))
    reading = EntropyReading(0, 1.0, 0.55, 10, exact=0.6, varentropy=1.2, curve=curve)
    for mu in (1.0, 0.5):
        gain = SolveGain(mu)
        gain.observe(reading)
        assert gain.step(1.0, math.log(2)) == pytest.approx(2 ** (mu / 2))


def test_solve_gain_lands_on_the_true_entropy_up_to_interpolation() -> None:
    plant = Plant()
    gain = SolveGain()
    gain.observe(plant.read(1.0))
    wanted = 1.15 * plant.moments(1.0)[0]
    assert plant.moments(gain.step(1.0, math.log(1.15)))[0] == pytest.approx(wanted, rel=0.005)


def test_solve_gain_stays_where_the_target_is_reached_whatever_the_factors() -> None:
    reading = EntropyReading(0, 1.0, 0.5, 10, exact=0.5, curve=((0.5, 0.2), (2.0, 0.9)))
    gain = SolveGain()
    gain.observe(reading)
    assert gain.step(1.0, 0.0) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(
    ("gain", "switch"),
    [(ElasticityGain(), "module.probe.rows"), (SolveGain(), "module.probe.factors")],
)
def test_a_missing_figure_names_the_switch(gain: ElasticityGain | SolveGain, switch: str) -> None:
    with pytest.raises(RuntimeError, match=f"step 3: .*{switch}"):
        gain.observe(BARE)
    with pytest.raises(RuntimeError, match="observe a reading"):
        gain.step(1.0, 0.1)


def test_elasticity_state_round_trips_and_is_strict() -> None:
    gain, twin = ElasticityGain(), ElasticityGain()
    gain.observe(measured(1.0, 0.4))
    twin.load_state_dict(gain.state_dict())
    assert twin.step(1.0, 0.1) == gain.step(1.0, 0.1)
    with pytest.raises(ValueError, match=r"missing keys \['elasticity'\]"):
        twin.load_state_dict({})


@pytest.mark.parametrize("stateless", [PaperGain(64), SolveGain()])
def test_stateless_gains_refuse_the_state_of_another(stateless: PaperGain | SolveGain) -> None:
    stateless.load_state_dict(stateless.state_dict())
    with pytest.raises(ValueError, match=r"unknown keys \['elasticity'\]"):
        stateless.load_state_dict({"elasticity": 0.4})


@pytest.mark.parametrize("mu", [0.0, 2.0])
def test_elasticity_gain_outside_the_stable_range_is_refused(mu: float) -> None:
    with pytest.raises(ValueError, match=f"mu={mu}"):
        ElasticityGain(mu)


def test_other_values_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary=1"):
        PaperGain(1)
    with pytest.raises(ValueError, match=r"ema=1\.0"):
        ElasticityGain(ema=1.0)
    with pytest.raises(ValueError, match=r"mu=1\.5"):
        SolveGain(1.5)

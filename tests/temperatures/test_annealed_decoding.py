"""A temperature that falls within completions: the formula, what its rule is told, and state."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import pytest
from softmax_plant import FACTORS, Plant

from e3rl.temperatures.annealed_decoding import AnnealedDecoding
from e3rl.temperatures.base import Difficulty, EntropyReading
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.gains import ElasticityGain, Gain, PaperGain, SolveGain
from e3rl.temperatures.multi_temperature import MultiTemperature
from e3rl.temperatures.spreads import ByDifficulty, Ladder

TOKENS = 20  # of a completion, so that most of the fall lies within it


def test_factors_fall_from_the_highest_to_the_floor() -> None:
    plan = AnnealedDecoding(Fixed(0.5), highest=1.2, lowest=0.1, scale=25.0).decide(3)
    assert plan.temperature == 0.5
    assert list(plan([0, 1], [0, 0])) == [0.5, 0.5]
    factors = plan.token_factors(30)
    assert factors[0] == pytest.approx(1.2)
    assert factors[5] == pytest.approx(2.2 - math.exp(0.2))
    assert factors[18] == pytest.approx(2.2 - math.exp(18 / 25))
    assert factors[19:] == (0.1,) * 11  # 25 ln 2.1 = 18.5
    assert all(a >= b for a, b in itertools.pairwise(factors))


def test_the_floor_holds_however_long_a_completion_is() -> None:
    assert AnnealedDecoding(Fixed(), scale=1.0).decide(0).token_factors(100_000)[-1] == 0.1


def test_untouched_tokens_keep_the_rules_temperature() -> None:
    factors = AnnealedDecoding(Fixed(), untouched=10).decide(0).token_factors(12)
    assert factors[:10] == (1.0,) * 10
    assert factors[10] == pytest.approx(2.2 - math.exp(10 / 25))


def test_the_scale_grows_with_the_step_up_to_its_limit() -> None:
    rule = AnnealedDecoding(Fixed(), scale=10.0, growth=5.0, longest=30.0)
    fifth = [rule.decide(step).token_factors(6)[5] for step in (0, 2, 4, 9)]
    assert fifth == pytest.approx([2.2 - math.exp(5 / d) for d in (10, 20, 30, 30)])


def test_it_goes_around_several_temperatures_and_within_them() -> None:
    spread = MultiTemperature(Fixed(0.5), ByDifficulty(0.25))
    outside = AnnealedDecoding(spread).decide(0, Difficulty((0.2, 0.8), 0.5))
    assert list(outside([0, 1], [0, 0])) == pytest.approx([0.425, 0.575])
    inside = MultiTemperature(AnnealedDecoding(Fixed(0.5)), Ladder([1.0, 1.5])).decide(0)
    assert list(inside([0, 0], [0, 1])) == [0.5, 0.75]
    assert outside.token_factors(4) == inside.token_factors(4) != ()
    assert Fixed().decide(0).token_factors(4) == spread.decide(0).token_factors(4) == ()


@dataclass
class AnnealedPlant(Plant):
    """A policy whose tokens are all at the same state, sampled at factor times τ."""

    def read(self, tau: float) -> EntropyReading:
        factors = AnnealedDecoding(Fixed()).decide(0).token_factors(TOKENS)
        each = [self.moments(f * tau) for f in factors]
        mean = sum(factors) / TOKENS * tau
        curve = [(c * mean, sum(self.moments(c * f * tau)[0] for f in factors)) for c in FACTORS]
        return EntropyReading(
            step=self.step,
            temperature=mean,
            sampled=sum(h for h, _ in each) / TOKENS,
            tokens=1000,
            exact=sum(h for h, _ in each) / TOKENS,
            varentropy=sum(w for _, w in each) / TOKENS,
            curve=tuple((t, h / TOKENS) for t, h in curve),
        )


@pytest.mark.parametrize("gain", [PaperGain(8), ElasticityGain(), SolveGain()])
def test_a_rule_holds_the_entropy_of_annealed_completions(gain: Gain) -> None:
    rule = AnnealedDecoding(EntropyTarget(gain, init_steps=1))
    plant = AnnealedPlant()
    (first,) = plant.run(rule, 1)
    plant.sharpness = 1.2
    rows = plant.run(rule, 60)
    assert rows[0]["entropy"] < 0.95 * first["entropy"]
    assert rows[-1]["entropy"] == pytest.approx(first["entropy"], rel=0.01)
    assert rows[-1]["tau"] == pytest.approx(1.2, rel=0.01)  # in terms of τ, not of the mean


def test_state_metrics_and_look_ahead_are_the_rules() -> None:
    rule, other = (AnnealedDecoding(EntropyTarget(PaperGain(34), init_steps=1)) for _ in range(2))
    rows = AnnealedPlant(drift=0.05).run(rule, 3)
    assert rows[-1]["value"] == rule.decide(3).temperature != 1.0
    other.load_state_dict(rule.state_dict())
    assert other.decide(3).temperature == rule.decide(3).temperature
    with pytest.raises(ValueError, match=r"missing keys \['rule'\]"):
        other.load_state_dict({})
    fresh = AnnealedDecoding(EntropyTarget(PaperGain(34), init_steps=1))
    fresh.bind(10, lookahead=1)
    assert fresh.decide(1).temperature == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lowest": 0.0}, r"lowest=0\.0 and highest=1\.2"),
        ({"highest": 0.1}, r"0 < lowest < highest"),
        ({"scale": 0.0}, r"scale=0\.0 must be tokens above 0"),
        ({"scale": 50.0, "longest": 25.0}, r"at most longest=25\.0"),
        ({"growth": -1.0}, r"growth=-1\.0"),
        ({"untouched": -1}, r"untouched=-1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AnnealedDecoding(Fixed(), **settings)

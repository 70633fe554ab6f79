"""Several temperatures in a step: what the rule that decides their base is told, and its state."""

import math
from dataclasses import dataclass

import pytest
from softmax_plant import FACTORS, Plant

from e3rl.temperatures.base import Difficulty, EntropyReading
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.gains import ElasticityGain, Gain, PaperGain, SolveGain
from e3rl.temperatures.multi_temperature import MultiTemperature
from e3rl.temperatures.spreads import ByDifficulty, Ladder

RUNGS = (1.5, 0.75)  # of mean 1.125: the rollouts' mean temperature is not that of the step


@dataclass
class MixedPlant(Plant):
    """The same policy sampled by turns at the rungs; as many tokens at each."""

    def read(self, tau: float) -> EntropyReading:
        each = [self.moments(rung * tau) for rung in RUNGS]
        mean = sum(RUNGS) / len(RUNGS) * tau
        curve = [
            (f * mean, sum(self.moments(f * rung * tau)[0] for rung in RUNGS) / len(RUNGS))
            for f in FACTORS
        ]
        entropy = sum(h for h, _ in each) / len(each)
        return EntropyReading(
            step=self.step,
            temperature=mean,
            sampled=entropy,
            tokens=1000,
            exact=entropy,
            varentropy=sum(w for _, w in each) / len(each),
            curve=tuple(curve),
        )


def test_rollouts_have_multiples_of_the_rules_temperature() -> None:
    rule = MultiTemperature(Fixed(0.5), Ladder([1.0, 1.5]))
    plan = rule.decide(3)
    assert plan.temperature == 0.5
    assert plan([0, 0, 1], [0, 1, 1]) == [0.5, 0.75, 0.75]
    by_rank = MultiTemperature(Fixed(0.5), ByDifficulty(0.25))
    plan = by_rank.decide(3, Difficulty((0.2, 0.8), 0.5))
    assert plan([0, 1, 1], [0, 0, 1]) == pytest.approx([0.425, 0.575, 0.575])
    assert plan.temperature == 0.5


@pytest.mark.parametrize("gain", [PaperGain(8), ElasticityGain(), SolveGain()])
def test_the_entropy_of_the_mixture_is_held_on_target(gain: Gain) -> None:
    rule = MultiTemperature(EntropyTarget(gain, init_steps=1), Ladder(RUNGS))
    plant = MixedPlant()
    (first,) = plant.run(rule, 1)
    plant.sharpness = 1.2
    rows = plant.run(rule, 60)
    assert rows[0]["entropy"] < 0.95 * first["entropy"]
    assert rows[-1]["entropy"] == pytest.approx(first["entropy"], rel=0.01)
    assert rows[-1]["tau"] == pytest.approx(1.2, rel=0.01)


def test_a_target_measured_before_prompts_were_seen_is_that_of_one_temperature() -> None:
    rule = MultiTemperature(EntropyTarget(PaperGain(34), init_steps=1), ByDifficulty(0.25))
    unseen, seen = Difficulty((math.nan, math.nan), math.nan), Difficulty((0.0, 1.0), 0.5)
    assert rule.decide(0, unseen)([0, 1], [0, 0]) == [1.0, 1.0]
    rule.observe(EntropyReading(step=0, temperature=1.0, sampled=0.8, tokens=1000))
    assert rule.decide(1, seen)([0, 1], [0, 0]) == pytest.approx([0.75, 1.25])
    # Four of five tokens are hot: the mixture's entropy is above that of τ = 1, which it cools to.
    rule.observe(EntropyReading(step=1, temperature=1.15, sampled=0.9, tokens=1000))
    assert rule.metrics()["target"] == 0.8
    assert rule.metrics()["log_alpha"] == pytest.approx(math.log(0.8 / 0.9))
    assert rule.decide(2).temperature < 1.0


def test_the_curve_is_read_in_terms_of_the_steps_own_temperature() -> None:
    # A full step of the solve gain is exact but for interpolation, whatever the mean is.
    rule = MultiTemperature(EntropyTarget(SolveGain(), init_steps=1), Ladder(RUNGS))
    plant = MixedPlant()
    plant.run(rule, 1)
    plant.sharpness = 1.1
    plant.run(rule, 1)
    assert rule.decide(2).temperature == pytest.approx(1.1, rel=0.01)


def test_bounds_of_the_rule_hold_for_every_rollout() -> None:
    bounded = EntropyTarget(PaperGain(34), bounds=(0.9, 1.1))
    rule = MultiTemperature(bounded, Ladder((0.5, 1.0, 1.5)))
    assert rule.decide(0)([0, 0, 0], [0, 1, 2]) == [0.9, 1.0, 1.1]
    free = MultiTemperature(Fixed(1.0), Ladder((0.5, 1.0, 1.5)))
    assert free.decide(0)([0, 0, 0], [0, 1, 2]) == [0.5, 1.0, 1.5]


def test_look_ahead_reaches_the_rule() -> None:
    rule = MultiTemperature(EntropyTarget(PaperGain(34), init_steps=1), Ladder())
    rule.bind(10, lookahead=1)
    assert rule.decide(1).temperature == 1.0
    with pytest.raises(RuntimeError, match="no entropy of step 0 reached it"):
        rule.decide(2)


def test_state_and_metrics_are_the_rules() -> None:
    def made() -> MultiTemperature:
        return MultiTemperature(EntropyTarget(PaperGain(34), init_steps=1), Ladder(RUNGS))

    rule, other = made(), made()
    plant = MixedPlant(drift=0.05)
    rows = plant.run(rule, 3)
    assert rows[-1]["value"] == rule.decide(3).temperature != 1.0
    other.load_state_dict(rule.state_dict())
    assert other.state_dict() == rule.state_dict()
    assert other.decide(3)([0], [1]) == rule.decide(3)([0], [1])
    with pytest.raises(ValueError, match=r"missing keys \['rule'\]"):
        other.load_state_dict({})

import pytest

from e3rl.temperatures.base import EntropyReading
from e3rl.temperatures.fixed import Fixed


def test_fixed_keeps_its_temperature_whatever_the_entropy() -> None:
    rule = Fixed(0.7)
    rule.bind(10)
    rule.observe(EntropyReading(step=0, temperature=0.7, sampled=0.1, tokens=5))
    assert rule.decide(9)([0, 0, 1], [0, 1, 0]) == [0.7, 0.7, 0.7]
    assert rule.metrics() == {"value": 0.7}


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_temperature_must_be_above_zero(temperature: float) -> None:
    with pytest.raises(ValueError, match=f"temperature={temperature}"):
        Fixed(temperature)


def test_fixed_refuses_the_state_of_another_rule() -> None:
    Fixed().load_state_dict(Fixed().state_dict())
    with pytest.raises(ValueError, match=r"Fixed.*unknown keys \['target'\]"):
        Fixed().load_state_dict({"target": 1.0})

import pytest

from e3rl.rewards.units import read_unit


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("km", {"km": 1}),
        ("kilometres", {"km": 1}),
        ("mg", {"mg": 1}),
        ("Hours", {"h": 1}),
        ("min.", {"min": 1}),
        ("km/h", {"km": 1, "h": -1}),
        ("kmh", {"km": 1, "h": -1}),
        ("miles per hour", {"mi": 1, "h": -1}),
        ("cm^2", {"cm": 2}),
        ("cm ^{3}", {"cm": 3}),
        ("square feet", {"ft": 2}),
        ("sq. in", {"in": 2}),
        ("kg m s^{-2}", {"kg": 1, "m": 1, "s": -2}),
        ("kg*m/s^2", {"kg": 1, "m": 1, "s": -2}),
    ],
)
def test_units_are_read_in_their_usual_spellings(text: str, unit: dict[str, int]) -> None:
    assert read_unit(text) == unit


@pytest.mark.parametrize(
    "text", ["", "students", "units", "cm long", "in total", "x", "square", "m+s", "2", "/"]
)
def test_what_is_not_wholly_known_is_no_unit(text: str) -> None:
    assert read_unit(text) is None

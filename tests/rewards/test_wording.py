"""Words beside a number: what is part of it, what measures it, what makes another answer of it."""

import pytest

from e3rl.rewards.wording import (
    fold_scales,
    have_other_bases,
    have_other_words,
    is_measure,
    mark_words,
    read_unit,
    set_clock,
)


@pytest.mark.parametrize(
    "words",
    [
        *(
            "units",
            "square cm",
            "~km",
            r"\,cm",
            "miles per hour",
            "sq. ft.",
            "cm ^2",
            "km²",
            "(cm)",
        ),
        *("boys", "students in total", "integer solutions", "apples left", "left over", "o'clock"),
        *(
            "times",
            "times as long",
            "dollars each",
            "more apples",
            "faces of the cube",
            "real root",
        ),
        *("percent", r"\%", "th", "C", "Hz", "p.m.", "元", "mètres"),
    ],
)
def test_units_and_names_of_what_is_counted_are_measures(words: str) -> None:
    assert is_measure(words)
    assert "■" not in mark_words(rf"5\text{{ {words}}}")


@pytest.mark.parametrize(
    "words",
    [
        *(
            "million",
            "dozen",
            "squared",
            "cubed",
            "factorial",
            "thousandths",
            "and a half",
            "k",
            "M",
        ),
        *(
            "or more",
            "or six",
            "is wrong",
            "not",
            "isn't",
            "at least",
            "at most",
            "plus one",
            "six",
        ),
        *(
            "times ten",
            "to the power of two",
            "less than ten",
            "below zero",
            "base two",
            "root two",
        ),
        *(
            "million-dollar bills",
            "Millionen",
            "миллионов",
            "十万",
            "²",
            "½",
            "!",
            "hours, 30 minutes",
        ),
        *("i", "e", "x", "pi", "cos", "xy", "cm or less", "boys or seven", "(wrong)", "(or 7)", ""),
    ],
)
def test_words_that_change_a_number_or_say_more_are_no_measures(words: str) -> None:
    assert not is_measure(words)


@pytest.mark.parametrize("piece", ["a", "a'", " ", "a ", "~", "5 ", "1,000", "5 million ", "n't"])
def test_long_lines_are_read_in_one_pass(piece: str) -> None:
    """What tries every split of the words would take hours, and this test with it."""
    line = piece * (3_000 // len(piece))
    for text in (line, rf"5\text{{{line}!}}", f"5 {line}1"):
        assert fold_scales(text)
        assert set_clock(text)
        assert not is_measure(f"{text}!")
        assert not have_other_words(text, text)
        assert not have_other_bases(text, text)


def test_empty_text_is_no_unit_that_takes_an_exponent() -> None:
    assert mark_words(r"5\text{}^2") == mark_words(r"5\text{ ~}^2") == "5 ^2"


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        (r"5\text{ million}", "5000000 "),
        (r"2.5\,\text{million dollars}", r"2500000\text{ dollars}"),
        (r"1,250 thousand", "1250000 "),
        (r"5 hundred thousand", "500000 "),
        (r"-2.5 dozen", "-30 "),
        (r"0\text{ million}", "0 "),
        (r"5\text{ million}^2", "5000000 ^2"),
        (r"5\text{ million}3", "5000000 3"),
        *((text, text) for text in ("5 millionths", "5 million-dollar bills", "5 milliliters")),
        *((text, text) for text in ("1/2 million", "3 1/2 million", "x^2 million", "4 5 million")),
        (r"\frac{1}{2}\text{ million}", r"\frac{1}{2}\text{ million}"),
    ],
)
def test_scales_are_part_of_a_number(line: str, folded: str) -> None:
    assert fold_scales(line) == folded


@pytest.mark.parametrize(
    "time", ["3:30 PM", "3:30 p.m.", r"3:30\text{ p.m.}", r"3\!:\!30\textsc{pm}", "3:30pm"]
)
def test_times_of_day_have_one_spelling(time: str) -> None:
    assert set_clock(time).replace(r"\!", "") == r"3:30\text{ pm}"


def test_what_is_no_time_of_day_stays_as_it_is() -> None:
    for text in ("5am", "2:3 am", "3:30", r"3:30\text{ men}", "1:10 pmx"):
        assert set_clock(text) == text


@pytest.mark.parametrize(
    ("answer", "gold", "other"),
    [
        (r"\sqrt{2}\text{ squared}", r"\sqrt{2}", True),
        (r"\sqrt{2}\text{ at least}", r"\sqrt{2}", True),
        (r"\sqrt{2}\text{ million}", r"\sqrt{2}\text{ thousand}", True),
        (r"\sqrt{2}\text{ cm}", r"\sqrt{2}", False),
        (r"x+1\text{ for all real x}", "x+1", False),
        (r"y=x+1\text{ where x is real}", "y=x+1", False),
        (r"n\text{ even}", r"n \text{ is even}", False),
        (r"n\text{ is odd}", r"n\text{ is even}", True),
        (r"f\text{ is Increasing}", r"f\text{ decreasing}", True),
        (r"5\text{ m north}", r"5\text{ m due north}", False),
        (r"5\text{ m south}", r"5\text{ m north}", True),
        (r"\text{not squared}", r"\text{neither}", False),  # words alone: compared as words
    ],
)
def test_words_behind_a_value_that_make_another_one_are_told(
    answer: str, gold: str, other: bool
) -> None:
    assert have_other_words(answer, gold) == other


@pytest.mark.parametrize(
    ("answer", "gold", "other"),
    [
        ("1011_2", "1011_8", True),
        ("1011_{2}", "1011_{8}", True),
        ("(1011)_2", "1011_8", True),
        (r"1011_{\text{two}}", "1011_8", True),
        (r"1011\text{ (base 2)}", "1011_8", True),
        (r"1011\text{ base two}", "1011_8", True),
        ("101_3, 11_2", "101_2, 11_3", True),
        ("11_3, 101_2", "101_2, 11_3", False),
        (r"1011_{\text{eight}}", "1011_8", False),
        ("521_{10} = 1011_8", "1011_8", False),
        ("1011", "1011_8", False),
        ("x_1+x_2", "x_2+x_3", False),
        (r"\log_2 8", r"\log_3 27", False),
    ],
)
def test_numbers_to_different_bases_are_told(answer: str, gold: str, other: bool) -> None:
    assert have_other_bases(answer, gold) == other
    assert have_other_bases(gold, answer) == other


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
        ("P.M.", {"pm": 1}),
        ("a. m.", {"am": 1}),
    ],
)
def test_units_are_read_in_their_usual_spellings(text: str, unit: dict[str, int]) -> None:
    assert read_unit(text) == unit


@pytest.mark.parametrize(
    "text", ["", "students", "units", "cm long", "in total", "x", "square", "m+s", "2", "/"]
)
def test_what_is_not_wholly_known_is_no_unit(text: str) -> None:
    assert read_unit(text) is None

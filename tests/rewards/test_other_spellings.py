"""Answers in another spelling than the gold: capitals, repeating decimals, rates, named points."""

import pytest
from judging import verify_answer

from e3rl.rewards.answer_formats import pair_values


def judged(answer: str, gold: str, prompt: str = "") -> str:
    return verify_answer(rf"\boxed{{{answer}}}", gold, prompt, "math_box").status


@pytest.mark.parametrize(
    "word", ["even", "true", "north", "increasing", "isosceles", "impossible", "plus one half"]
)
def test_a_word_is_right_in_other_capitals(word: str) -> None:
    for said, gold in ((word.capitalize(), word), (word, word.capitalize()), (word.upper(), word)):
        assert judged(said, gold) == "correct", (said, gold)


def test_other_words_and_capitals_of_a_row_stay_wrong() -> None:
    assert judged("Odd", "even") == "wrong"
    assert judged("Evens", "even") != "correct"
    assert judged("abdc", "ABCD") == "wrong"


@pytest.mark.parametrize(
    ("decimal", "fraction"),
    [
        (r"0.\overline{3}", r"\frac{1}{3}"),
        (r"0.1\overline{6}", r"\frac{1}{6}"),
        (r".\bar{3}", "1/3"),
        (r"0.\overline{142857}", r"\frac17"),
        (r"-0.\overline{27}", r"-\frac{3}{11}"),
        (r"1.\overline{3}", r"1\frac{1}{3}"),
        (r"0.\overline{9}", "1"),
        (r"x = 0.\overline{3}", r"\dfrac{2}{6}"),
    ],
)
def test_a_repeating_decimal_is_its_fraction(decimal: str, fraction: str) -> None:
    assert judged(decimal, fraction) == "correct"
    assert judged(fraction, decimal) == "correct"
    assert judged(decimal, r"\frac{5}{13}") == "wrong"


def test_a_repeating_decimal_that_the_question_has_is_no_answer_to_it() -> None:
    asked = r"Write $0.\overline{27}$ as a fraction."
    assert judged(r"\frac{3}{11}", r"\frac{3}{11}", asked) == "correct"
    assert judged(r"0.\overline{27}", r"\frac{3}{11}", asked) == "wrong"
    assert judged(r"x = 0.2\overline{72}", r"\frac{3}{11}", asked) == "wrong"
    asked = r"Write $\frac{3}{11}$ as a decimal."
    assert judged(r"0.\bar{27}", r"0.\overline{27}", asked) == "correct"
    assert judged("6/22", r"0.\overline{27}", asked) == "wrong"


def test_a_bare_rate_is_a_unit() -> None:
    for said in ("17 km/h", "17 km/hr", "17m/s", "17 m/s^2", "17.0 km/h", "x = 17 m/s"):
        assert judged(said, "17") == "correct", said
    assert judged(r"\frac{34}{2} m/s", "17") == "wrong"  # left to be worked out
    assert judged("17", "17 km/h") == "correct"
    assert judged("17 km/h", "17 m/s") == "wrong"
    assert judged("18 km/h", "17") == "wrong"
    assert judged("17 a/b", "17") == "wrong"  # names, and no units


def test_the_coordinates_of_a_point_may_be_named_in_any_order_but_not_exchanged() -> None:
    assert judged("x=1, y=2", "(1,2)") == "correct"
    assert judged("y=1, x=2", "(1,2)") == "wrong"
    assert pair_values("y=1, x=2", "(1,2)") == [[("1", "2"), ("2", "1")]]
    assert pair_values("t=1, s=2", "(1,2)") == []  # no order of names is known
    assert pair_values("y=1, x=2", r"\{1,2\}") == []


@pytest.mark.parametrize(
    ("completion", "number"),
    [
        ("so x = - 7", "-7"),
        ("Answer: − 7", "-7"),
        ("The profit is -$7.", "-7"),
        (r"a loss of –\$7.50", "-7.50"),
        ("it is –7 degrees", "-7"),
        (r"x = - \frac{3}{4}", r"-\frac{3}{4}"),
        ("10 - 5", "5"),
        ("so x - 7", "7"),
        ("$5$ - $7$", "7"),
        ("$5$ -$7$", "7"),
        ("I have:\n- 7 apples", "7"),
        ("pages 3–4", "4"),
    ],
)
def test_a_sign_may_stand_apart_from_the_last_number(completion: str, number: str) -> None:
    assert verify_answer(completion, number, "", "last_number").status == "correct"
    other = number.removeprefix("-") if number.startswith("-") else f"-{number}"
    assert verify_answer(completion, other, "", "last_number").status == "wrong"

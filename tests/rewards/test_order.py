"""Where order makes another answer of the same letters or values."""

import pytest

from e3rl.rewards.answer_formats import have_other_order, pair_values


@pytest.mark.parametrize(
    ("answer", "gold", "other"),
    [
        ("seat", r"\text{east}", True),
        ("East", r"\text{east}", False),
        ("CBA", "ABC", True),
        ("C, B, A", "ABC", True),
        (r"\text{ABC}", "$ABC$", False),
        ("A, B, C", "B, A, C", True),
        (r"\{A, B, C\}", r"\text{B, A, C}", True),
        ("B A C", "B, A, C", False),
        ("B, A", "A, B", True),
        ("A, B", "A, B, C", False),  # other letters are another matter
        ("BA", "AB", False),  # a segment
        ("ba", "ab", False),  # a product
        ("c, b, a", "a, b, c", False),  # a set
    ],
)
def test_words_and_rows_of_capitals_have_an_order(answer: str, gold: str, other: bool) -> None:
    assert have_other_order(answer, gold) == other


@pytest.mark.parametrize("gold", ["x=3,y=2", r"x = 3 \text{ and } y = 2", r"$x=3;\quad y=2$"])
@pytest.mark.parametrize("answer", ["3, 2", "(3,2)", r"\{3, 2\}", r"3\text{ and }2."])
def test_values_are_paired_with_those_of_the_names(answer: str, gold: str) -> None:
    assert pair_values(answer, gold) == [[("3", "3"), ("2", "2")]] * 2


def test_values_may_follow_the_order_of_the_names() -> None:
    assert pair_values("2,3", "y=3,x=2") == [[("3", "2"), ("2", "3")], [("2", "2"), ("3", "3")]]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("3,2", "x=2,x=3"),  # two solutions
        ("x=3,y=2", "x=2,y=3"),
        ("1,2,3", "x=1,y=2"),
        ("3,2", "2,3"),
        ("3", "x=3"),
        ("3,2", "f(1)=2,f(2)=3"),
        ("x^2+1,x", "f(x)=x,f(x)=x^2+1"),
    ],
)
def test_nothing_is_paired_without_names_of_one_value_each(answer: str, gold: str) -> None:
    assert pair_values(answer, gold) == []

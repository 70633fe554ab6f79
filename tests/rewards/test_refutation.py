"""Different values are told at once; what may be equal is left to the algebra system."""

import pytest

from e3rl.rewards.refutation import are_different, are_far_apart
from e3rl.rewards.verifier import _parse


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\sqrt{2}+1", r"\sqrt{2}"),
        (r"2^{10}\pi", "1024"),
        ("x^2+1", "x^2+2"),
        ("y = 2x+5", "2x+4"),
        (r"\sin(\cos(\sin(2)))", r"\sqrt{2}"),
        ("(1, 2)", r"\sqrt{2}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\ln(2)"),
    ],
)
def test_different_values_are_told(one: str, other: str) -> None:
    assert are_different(_parse(one)[0], _parse(other)[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\sqrt{8}", r"2\sqrt{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\sin(x)^2+\cos(x)^2+y", "1+y"),
        ("y = 2x+5", "5+2x"),
        (r"\frac{1}{3}", "0.333333"),
        ("x > 2", r"(2, \infty)"),
        (r"\{5\}", "5"),
        ("y = x+1", "x = y-1"),  # both are equations: which is the answer is open
        ("2^{5000}", "4^{2500}"),  # beyond machine numbers
        (r"\int_0^1 x dx", "7"),  # not worked out here
        ("x", "y"),  # names may be words
    ],
)
def test_what_may_be_equal_stays_open(one: str, other: str) -> None:
    assert not are_different(_parse(one)[0], _parse(other)[0])


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [
        ("0.0000004", "0.0000001", True),
        ("10^{-7}", "0", True),
        ("x = 10^{-7}", "0.0000002", True),
        ("(0.0000001, 2)", "(0.0000003, 2)", True),
        ("[0, 0.0000001)", "[0, 0.0000003)", True),
        ("0.0000001", "10^{-7}", False),
        (r"\frac{1}{3}", "0.333333", False),
        (r"\sin(\pi)", "0", False),  # what rounding leaves
        (r"\sqrt{2}\cdot\sqrt{2}-2", "0", False),
        ("1, 1, 2", "1, 2", False),
        ("0.0000001x", "0.0000002x", False),  # no numbers
        ("(1, 2)", "1", False),
        (r"\int_0^1 x dx", "7", False),
    ],
)
def test_numbers_of_different_magnitude_are_far_apart(one: str, other: str, far: bool) -> None:
    assert are_far_apart(_parse(one)[0], _parse(other)[0]) == far
    assert are_far_apart(_parse(other)[0], _parse(one)[0]) == far

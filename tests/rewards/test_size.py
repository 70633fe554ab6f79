"""What is too large for an algebra system is told by its text; what people write is not."""

import math

import pytest

from e3rl.rewards.answer_reader import AnswerReader
from e3rl.rewards.maths import MathScorer
from e3rl.rewards.scorer import Question
from e3rl.rewards.size import MOST_DIGITS, MOST_EXPANDED, MOST_NESTED, MOST_TERMS, measure_size
from e3rl.rewards.spellings import usual_spellings
from e3rl.rewards.verdict import CORRECT, UNPARSED, WRONG, Verdict


@pytest.mark.parametrize(
    ("text", "digits"),
    [
        ("1000", 3),
        ("-1000", 3),
        ("12.5", math.log10(12)),
        ("0.001", 0),
        (r"2^{2014}", 2014 * math.log10(2)),
        ("2^10", 10 * math.log10(2)),
        (r"10^{10^{3}}", 1000),
        (r"\frac{10^{50}}{10^{20}}", 50),
        ("10^{20}/10^{50}", 50),
        ("2^{2014/2013}", 2014 * math.log10(2)),  # what divides makes nothing larger
        ("x^{100+200}", math.log10(2) * 10 ** (math.log10(200) + math.log10(2))),
        ("100!", 200),  # 100 factors of at most 100 each
        (r"\binom{100}{3}", 6),  # 100^3
        (r"\binom{100}{50}", 100 * math.log10(2)),  # 2^100
        (r"\sqrt[3]{10^{40}}", 40),
        (r"\sum_{k=1}^{10^{3}} k", 3),
        (r"\sin x", 0),
        (r"\left(1, 10^{7}\right]", 7),
    ],
)
def test_digits_are_those_of_the_largest_number_or_a_few_more(text: str, digits: float) -> None:
    found = measure_size(text).digits
    assert digits - 1e-9 <= found <= digits + math.log10(3)


def test_terms_brackets_and_powers_of_sums_are_counted() -> None:
    assert measure_size(r"\sum_{k=1}^{10^{6}} \frac{1}{k}").terms == pytest.approx(1e6)
    assert measure_size(r"\prod_{k=1}^{100} k").terms == pytest.approx(100)
    assert measure_size(r"\sum_{k=1}^{n} k").terms <= 2  # nobody adds them up
    assert measure_size(r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}").nested == 3
    assert measure_size("(x+1)^{10}").expanded == pytest.approx(11)
    assert measure_size("(a+b+c)^{4}").expanded == pytest.approx(15)  # 6 over 2
    assert measure_size("(2+1)^{10}").expanded == 0
    assert measure_size(r"n=12+34=46, x \le 2").relations == 3
    assert measure_size(r"\begin{pmatrix}1&2\\3&4\end{pmatrix}, 7").items == 4


@pytest.mark.parametrize(
    ("text", "functions"),
    [
        ("x", 0),
        (r"\sin x", 1),
        (r"\sin(x) + \cos(x)", 1),
        (r"\sin x\cos x", 1),
        (r"\ln\ln x", 2),
        (r"\ln(\sin^{2}(x))", 2),
        (r"\ln(\sin^2(x))", 2),
        (r"\log_{\ln 2}(\cos(\exp(3)))", 3),
        (r"\sin\left(\arctan\frac{3}{4}\right)", 2),
        (r"\ln(\sin(1)+\cos(\tanh(\operatorname{f}(2))))", 3),
        (r"\cos(\sin(\ln(\sin(2))))", 4),
        ("\\ln(" * 100, 100),
        (r")))\ln(x)", 1),
    ],
)
def test_functions_of_functions_are_counted(text: str, functions: int) -> None:
    assert measure_size(text).functions == functions


@pytest.mark.parametrize(
    "text",
    [
        r"\cosh(\cosh(\exp(\ln(3))))",
        "9^{9^{9}}",
        "9^{9^{9^{9^{9}}}}+1",
        "((99!)!)!",
        "100000!",
        r"\sum_{k=1}^{10^{12}} \frac{1}{k}",
        r"\prod_{k=1}^{100000} k^k",
        r"\binom{10^{9}}{10^{8}}",
        "(x+y+z+1)^{1000}",
        "(" * 40 + "1" + ")" * 40,
        ",".join(map(str, range(60))),
        "=".join("abcdefghijk"),
        r"\frac{1}{1+" * 30 + "x" + "}" * 30,
        "{" * 3000,
        "1" + "0" * 12_000,
    ],
)
def test_hopeless_answers_do_not_fit(text: str) -> None:
    assert not measure_size(text).fits


@pytest.mark.parametrize(
    "text",
    [
        "2^{2014}",
        "4^{1007}",
        "10^{100}",
        r"\frac{100!}{50!\,50!}",
        r"1009! \cdot 1010!",
        "2012^{2012}",
        r"\binom{2000}{1000}",
        r"\sum_{k=0}^{2023} \frac{1}{k+1}",
        r"\sum_{n=1}^{\infty} \frac{1}{n^2}",
        "(x+1)^{100}",
        "(a+b+c)^{20}",
        r"\frac{1}{1+\frac{1}{1+\frac{1}{1+\frac{1}{2}}}}",
        r"\sqrt{2+\sqrt{2+\sqrt{2+\sqrt{2}}}}",
        ",".join(map(str, range(30))),
        r"\left\lfloor \frac{n}{2} \right\rfloor + 2^{n^{2}}",
        r"x^{10000}",
        "9" * 300,
        "3 \\times 10^{999}",
    ],
)
def test_what_people_write_fits(text: str) -> None:
    assert measure_size(text).fits


@pytest.mark.parametrize("text", ["", "}", "^", "!", r"\frac", "^^^", "{}}{", "\\", "⁰٣", "_!_"])
def test_no_text_is_an_error(text: str) -> None:
    assert measure_size(text).fits


def test_a_million_letters_are_measured_in_one_pass() -> None:
    assert not measure_size("9^{" * 300_000).fits
    assert measure_size("x+" * 300_000).fits


def test_usual_spellings_of_large_answers_fit() -> None:
    for gold in ("2^{2014}", r"\frac{7}{3}", "123456", r"\sqrt[3]{2^{100}}"):
        assert all(measure_size(text).fits for text in usual_spellings(gold).values())


def begin(answer: str, gold: str) -> object:
    scorer = MathScorer(AnswerReader("math_box"))
    return scorer.begin(rf"\boxed{{{answer}}}", Question("", "", gold))


def test_what_does_not_fit_never_reaches_a_worker_and_golds_are_matched_by_their_text() -> None:
    assert begin("9^{9^{9}}", r"\sqrt{2}") == UNPARSED
    assert not isinstance(begin("9^{9}", r"\sqrt{2}"), Verdict)
    assert begin("9^{9^{9}}", "9^{9^{9}}") == CORRECT
    assert begin("9^{9^{8}}", "9^{9^{9}}") == WRONG
    MathScorer(AnswerReader("math_box")).check([Question("", "", "9^{9^{9^{9}}}")])


def test_the_bounds_are_far_above_what_golds_need() -> None:
    assert MOST_DIGITS > 2 * 1000
    assert MOST_TERMS > 2 * 2024
    assert MOST_NESTED > 5
    assert MOST_EXPANDED > 2 * 200

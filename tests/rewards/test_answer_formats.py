import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import read_answer

from e3rl.rewards.answer_formats import (
    ends_in_number,
    equated_numbers,
    have_other_units,
    is_code,
    is_copied,
    is_number,
    lacks_equation,
    last_box,
    leaves_work,
    normal_form,
    same_number,
    same_text,
)


@pytest.mark.parametrize(
    ("completion", "content"),
    [
        (r"so \boxed{42}", "42"),
        (r"so \boxed{ 42 }.", "42"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
        (r"\boxed{a \\}", r"a \\"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{}", ""),
        (r"\boxed{1} and \boxed{2", None),
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{1\}", None),
        (r"\boxed 42", None),
        ("the answer is 42", None),
        ("", None),
    ],
)
def test_last_box_is_the_last_balanced_one_or_nothing(completion: str, content: str | None) -> None:
    assert last_box(completion) == content


@pytest.mark.parametrize(
    ("completion", "integer", "math"),
    [
        (r"\boxed{42}", "42", "42"),
        (r"\boxed{ -7 }", "-7", "-7"),
        (r"\boxed{007}", "007", "007"),
        (r"\boxed{+7}", None, "+7"),
        (r"\boxed{4 2}", None, "4 2"),
        (r"\boxed{12+34}", None, "12+34"),
        (r"\boxed{42.0}", None, "42.0"),
        (r"\boxed{x=46}", None, "x=46"),
        (r"\boxed{\$}", None, r"\$"),
        (r"\boxed{٤}", None, "٤"),
        (r"\boxed{ \, }", None, None),
        (r"\boxed{$ $}", None, None),
        ("so 3+4=7", None, None),
        (r"\boxed{} after 10-3=7", None, None),
        (r"\boxed{" + "1" * 301 + "}", None, None),
        (r"\boxed{" + "1" * 300 + "}", "1" * 300, "1" * 300),
    ],
)
def test_formats_accept_exactly_their_answers(
    completion: str, integer: str | None, math: str | None
) -> None:
    assert read_answer(completion, "integer_box", 300) == integer
    assert read_answer(completion, "math_box", 300) == math


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        (r"\dfrac{1}{2}", r"\frac12"),
        (r"\frac 1 2", r"$\tfrac{1}{2}$"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"80 \%", "80"),
        (r"35\,\%", "35"),
        ("7\\ .", "7"),
        (r"\sqrt{2}\,", r"\sqrt{2}"),
        (r"(1,2)\;", "(1,2)"),
        (r"x \quad\,.\,", "x"),
        (r"\varnothing", r"\emptyset"),
        ("x ∈ ∅", r"x ∈ \varnothing"),
        (r"\sin 20^{\circ}", "\\sin 20°"),
        (r"10,\!010", "10010"),
        (r"2\sqrt3", r"2 \sqrt{3}"),
        ("1, 23", "1,23"),
        (r"12\,345~678", "12345678"),
        ("x^{2}", "x^2"),
        (r"\[ 5183 \]", "5183."),
        (r"\frac{99}{70}", r"x=\boxed{\frac{99}{70}}"),
        (r"7 \times 5", r"7 \cdot 5"),
    ],
)
def test_layout_and_spelling_do_not_tell_answers_apart(answer: str, gold: str) -> None:
    assert same_text(answer, gold)
    assert same_text(gold, answer)


@pytest.mark.parametrize(
    ("answer", "form"),
    [
        ("007", "7"),
        (r"$-0$", "0"),
        ("-012.", "-12"),
        (r"\dfrac12", r"\frac{1}{2}"),
        ("0.50", "0.50"),
        (r"\text{ Evelyn }", "Evelyn"),
    ],
)
def test_answers_have_one_normal_form(answer: str, form: str) -> None:
    assert normal_form(answer) == form
    assert normal_form(form) == form


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("12", "1 3"),
        ("4 6", "46"),
        ("1 23", "12 3"),
        ("x^2", "x_2"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        (r"7\$", "7"),
    ],
)
def test_different_answers_are_told_apart(answer: str, gold: str) -> None:
    assert not same_text(answer, gold)


NUMBERS = [
    *("46", "-46", "046", "46.0", ".5", "46.", "1,234", "12,345,678", r"1{,}234", r"10,\!010"),
    *(
        r"\frac{1}{-2}",
        r"-\frac{-3}{-4}",
        "3/-4",
        r"\frac{2}{3}",
        r"-\frac{2}{3}",
        r"\frac{-2}{3}",
        r"\dfrac23",
        "2/3",
        r"6\frac{1}{2}",
    ),
    *(r"2.5 \times 10^{5}", r"3 \cdot 10^5", r"50\%", r"\$15", r"90^\circ", "x=5", r"\[ 5 \]"),
    *("10^3", r"10^{-3}", "1e3", "2.5E-3", r"-10^{12}", r"12\,345"),
    *(
        r"40 \text{ feet}",
        "46 km/h",
        r"273 \mathrm{~km}",
        r"\{46\}",
        "(46)",
        r"\angle CAB=60^{\circ}",
    ),
]


@pytest.mark.parametrize("text", NUMBERS)
def test_single_numbers_are_recognised(text: str) -> None:
    assert is_number(text)
    assert ends_in_number(text)


@pytest.mark.parametrize("text", ["46 m", "46 cm^2", "m+n=46", "1+45=46", "f(3)=46"])
def test_answers_may_carry_a_bare_unit_or_a_relation(text: str) -> None:
    assert ends_in_number(text)
    assert not is_number(text)


@pytest.mark.parametrize(
    "text",
    [
        *("12+34", "7*5+6*4", r"7 \cdot 5", "3^2", "2^{10}", "46!", r"\sqrt{2116}", "2(23)"),
        *(
            "(3)(4)",
            r"\frac{92}{2}",
            r"\frac{46}{1}",
            "92/2",
            r"\frac{1}{0}",
            r"\frac{-92}{-2}",
            r"\binom{46}{1}",
        ),
        *("46=12+34", r"\frac{12+34}{1}", "1,2", "1, 100, 101", r"12 \times 10^2", "--5", "46-"),
        *("4 6", "12 345", r"1\,23", "110^3", "e3"),
        *(r"3\pi", r"1+\sqrt{2}", "(1,2)", "x", "Evelyn", "", r"2 \text{ or } 3", r"9^{9^{9^9}}"),
    ],
)
def test_operations_and_other_answers_are_no_numbers(text: str) -> None:
    assert not is_number(text)
    assert not ends_in_number(text)


@pytest.mark.parametrize(
    ("answer", "prompt"),
    [
        ("12+34", "Compute 12+34."),
        ("12 + 34", "Compute $12+34$."),
        (r"7 \cdot 5", r"Compute $7\times 5$."),
        (r"\sqrt8-1", r"Simplify \(\sqrt{8} - 1\)."),
        ("x^2-4=0", "Solve x^2 - 4 = 0."),
        (r"\tan 60^{\circ}", r"Find $\tan 60^\circ$."),
        (r"\dfrac{\sqrt{12}}{2}", r"What is $\frac{\sqrt{12}}{2}$ in lowest terms?"),
    ],
)
def test_expressions_of_the_prompt_are_copies(answer: str, prompt: str) -> None:
    assert is_copied(answer, prompt)


@pytest.mark.parametrize(
    ("answer", "prompt"),
    [
        ("46", "Is it 46 or 47?"),
        (r"\frac{1}{2}", r"Find $n$ with $n=\frac{1}{2}$."),
        ("x=5", "Is x=5 a root?"),
        (r"\text{Evelyn}", "Evelyn and Dan race. Who wins?"),
        ("x", "Find x."),
        (r"(1, 2)", "The point (1, 2)."),
        ("2+34", "Compute 12+34."),
        ("12+3", "Compute 12+34."),
        (r"1+\sqrt{2}", r"Compute $2\sqrt{2}+1$."),
    ],
)
def test_numbers_words_and_parts_of_longer_numbers_are_no_copies(answer: str, prompt: str) -> None:
    assert not is_copied(answer, prompt)


@settings(deadline=None, max_examples=100)
@given(st.recursive(st.text("ab1 $,"), lambda inner: inner.map(lambda text: f"{{{text}}}")))
def test_a_balanced_box_gives_back_what_it_holds(content: str) -> None:
    assert last_box("so \\boxed{" + content + "} end") == content.strip()


@settings(deadline=None, max_examples=100)
@given(st.text("{}\\$%^_.,/*+-=()[]!~12ab frcqtx", max_size=40), st.text(max_size=20))
def test_no_text_makes_the_rules_raise(answer: str, prompt: str) -> None:
    assert same_text(answer, answer)
    assert ends_in_number(answer) or not is_number(answer)
    assert not (is_number(answer) and "10" not in answer and is_copied(answer, prompt))
    assert not have_other_units(answer, answer)
    assert equated_numbers(answer) == [] or "=" in answer


@pytest.mark.parametrize(
    ("answer", "gold", "same"),
    [
        (r"125{,}875{,}000^\circ", "125,875,000", True),
        ("x = 125,875,000", "125875000", True),
        (r"m+n = 46\text{ cm}^2", "46", True),
        ("46", r"46\mathrm{~cm}^{3}", True),
        (r"46\text{ cm}", r"46\text{ mm}", False),
        (r"46\text{ boys}", r"46\text{ pupils}", True),
        (r"46\text{ cm}^2", "46.0", False),  # not as written: left to algebra
        (r"3\text{ cm}^2", "9", False),
        (r"3\text{}^2", "9", False),
        ("46x", "46", False),
        ("y=5", "x=5", False),
        ("12345", r"(12,345)", False),
        (r"\{12,345\}", "12345", False),
        ("1,2", "12", False),
        (r"\sqrt{2}", r"\sqrt{2}", False),  # no single number
        ("46=x", "46", False),
        ("2x-y=0", "0", False),  # a line, not a number
        ("12+34=46", "46", False),
    ],
)
def test_a_number_is_the_same_with_a_unit_and_digit_groups(
    answer: str, gold: str, same: bool
) -> None:
    assert same_number(answer, gold) == same


@pytest.mark.parametrize(
    ("answer", "pairs"),
    [
        ("45=46", [("45", "46")]),
        ("n = 40+5 = x = 46", [("40+5", "46")]),
        (r"1{,}000 + 1 = 1,001", [("1000+1", "1001")]),
        (r"2(23) = (2)(23) = 46", [("2*(23)", "46"), ("(2)*(23)", "46")]),
        (r"4\text{ m} = 5\text{ m}", [("4", "5")]),
        (r"5\text{ m} = 500\text{ cm}", []),
        (r"50\% = 0.5", []),
        (r"\sqrt{2} \approx 1.4 = 1.41", [("1.4", "1.41")]),
        ("x^2 - 4 = 0", []),
        ("x = 1, y = 2", []),
        ("46", []),
    ],
)
def test_numbers_that_an_answer_equates(answer: str, pairs: list[tuple[str, str]]) -> None:
    assert equated_numbers(answer) == pairs


@pytest.mark.parametrize(
    ("answer", "gold", "other"),
    [
        (r"5\text{ m}", r"5\text{ km}", True),
        (r"5\text{ m}", r"5\text{ meters}", False),
        (r"x = 5\text{ m}^{2}", r"5\,\mathrm{m}", True),
        (r"5\text{ sq. ft}", r"5 \text{ square feet}", False),
        ("60 mph", r"60\text{ miles per hour}", False),
        ("60 km/h", r"60\text{ miles per hour}", True),
        (r"5\text{ m/s}^2", r"5\text{ m s}^{-2}", False),
        (r"20^\circ\text{C}", r"20\text{ degrees Celsius}", False),
        (r"20^\circ\text{C}", "20 °F", True),
        (r"20^\circ\text{C}", r"20^\circ", False),
        (r"\$4.50", r"4.50\text{ dollars}", False),
        (r"\$4.50", "4.50 €", True),
        (r"5\text{ m}", "5", False),
        (r"5\text{ m}", r"5\text{ boys}", False),
        ("5x", "5m", False),
    ],
)
def test_units_are_told_apart_where_both_are_known(answer: str, gold: str, other: bool) -> None:
    assert have_other_units(answer, gold) == other
    assert have_other_units(gold, answer) == other


@pytest.mark.parametrize(
    ("answer", "gold", "prompt", "lacks"),
    [
        ("3", "x+y=3", "Which line is it?", True),
        ("3", "x+y=3", "Find $x + y$.", False),
        ("3 = y + x", "x+y=3", "Which line is it?", False),
        ("3", "x=3", "Find it.", False),
        (r"12+12\sqrt{3}", r"AB=12+12\sqrt{3}", "How long is it?", False),
        ("25", "x^2+y^2=25", "Which circle is it?", False),  # left to algebra
    ],
)
def test_one_side_of_an_equation_is_none(answer: str, gold: str, prompt: str, lacks: bool) -> None:
    assert lacks_equation(answer, gold, prompt) == lacks


def test_what_leaves_work_or_calls_functions_is_told() -> None:
    assert leaves_work(r"\int_0^1 x dx", r"\frac{1}{2}")
    assert leaves_work(r"\sum_{n=1}^{\infty} \frac{1}{n^2}", r"\frac{\pi^2}{6}")
    assert not leaves_work(r"\int_0^1 x dx", r"\int_0^1 t dt")
    assert not leaves_work(r"\sum_{k=0}^{n} k \limits", r"\frac{n(n+1)}{2}")
    assert is_code("__import__('os')")
    assert is_code("eval(1)")
    assert not is_code(r"sqrt(2)+\sin(x)+f(x)+floor(y)")


@pytest.mark.parametrize("mark", [".", "~", "\\,", ", ", "\\quad", "\\", " ", "\\! "])
def test_marks_in_a_row_are_looked_at_once(mark: str) -> None:
    """Where they end in a letter nothing is taken off; a search from each would take minutes."""
    line = mark * 100_000 + "x"
    assert normal_form(line).endswith("x")

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from e3rl.data.problem import Problem
from e3rl.data.questions import (
    CONTRADICTED,
    REPEATED,
    find_superfluous,
    have_same_answer,
    question_key,
    question_text,
    strip_wrapping,
)


def asked(prompt, answer="1", key="p"):
    return Problem(key, prompt, answer, "s")


def test_question_text_ignores_form_system_messages_and_blanks():
    chat = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "a\n b"})
    assert question_text(asked(chat)) == "a b"
    assert question_text(asked(" a b ")) == "a b"


@pytest.mark.parametrize(
    "other",
    [
        "what is $\\frac{1}{2} \\cdot x$",
        "What is $\\dfrac12 \\times x$?",
        "What  is \\(\\frac{1}{2}\\,\\cdot\\, x\\)?\n",
        "What is $\\displaystyle \\frac{1}{2}×x$ ?",
        "What is \\[ \\frac 1 2 \\cdot x. \\]",
    ],
)
def test_one_question_in_several_spellings_has_one_key(other):
    assert question_key(asked(other)) == question_key(asked("What is $\\frac{1}{2} \\cdot x$?"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Let $x$, $y$ and $z$ be", "Let $x, y$ and $z$ be"),
        ("What is $xyz$?", "What is $x y z$?"),
        ("$(x \\cdot y) + z$", "$(x\\cdot y)+z$"),
        ("What is $x^2$?", "What is x²?"),
    ],
)
def test_layout_of_mathematics_does_not_matter(one, other):
    assert question_key(asked(one)) == question_key(asked(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 1.5?", "What is 15?"),
        ("Add (1,2).", "Add (12)."),
        ("x+1", "x-1"),
        ("\\frac{1}{23}", "\\frac{12}{3}"),
        ("$x^{12}$", "$x^{1}2$"),
        ("0.5!", "0.5"),
        ("What is gcd(2, 14)?", "What is gcd(21, 4)?"),
        ("Sort 1 23", "Sort 12 3"),
        ("Sort $1 23$", "Sort $12 3$"),
        ("Add 1 .5", "Add 1.5"),
        ("Compute 3²", "Compute 32"),
        ("Add 3½", "Add 31⁄2"),
        ("Reverse: no where", "Reverse: nowhere"),
        ("Reverse: a bc", "Reverse: ab c"),
        ("Count the a in Aa", "Count the a in aA"),
        ("Is $A$", "Is $a$"),
        ("Is $x \\in t$", "Is $x \\int$"),
    ],
)
def test_questions_that_differ_in_what_matters_keep_different_keys(one, other):
    assert question_key(asked(f"{one} now")) != question_key(asked(f"{other} now"))


@given(st.lists(st.integers(0, 999), min_size=2, max_size=5), st.data())
def test_lists_of_numbers_are_told_apart_however_they_are_written(numbers, data):
    digits = "".join(map(str, numbers))
    cuts = data.draw(st.sets(st.integers(1, len(digits) - 1), min_size=1)) if digits[1:] else {1}
    ends = [0, *sorted(cuts), len(digits)]
    others = [digits[a:b] for a, b in pairwise(ends)]
    assume(others != list(map(str, numbers)))
    for written in ("gcd({})", "Sort {}.", "Sort $({})$."):
        for separator in (", ", " ", "; "):
            one = separator.join(map(str, numbers))
            other = separator.join(others)
            assert question_key(asked(written.format(one))) != question_key(
                asked(written.format(other))
            )


def test_a_question_of_punctuation_alone_still_has_a_key():
    assert question_key(asked("$$")) != question_key(asked("~"))


@given(st.text(min_size=1))
def test_blanks_never_matter(text):
    assert question_key(asked(f"  {text}\n")) == question_key(asked(text))


def test_golds_agree_up_to_layout_units_and_digit_groups():
    for one, other in (("83", "83^\\circ"), ("1,000", "1000"), ("\\frac12", "\\dfrac{1}{2}")):
        assert have_same_answer([asked("q", one), asked("q", other)])
    assert have_same_answer([asked("q", "5"), asked("q", "5\\text{ cm}"), asked("q", "x = 5")])
    assert not have_same_answer([asked("q", "x = 5"), asked("q", "y = 5")])
    assert not have_same_answer([asked("q", "0"), asked("q", "1")])


def test_the_first_of_equal_problems_stays_and_none_of_contradictory_ones():
    problems = [
        asked("a?", "1", "a1"),
        asked("b?", "1", "b1"),
        asked("A ?", "1", "a2"),
        asked("b?", "2", "b2"),
        asked("c?", "2", "c1"),
        asked("a", "1", "a3"),
    ]
    assert find_superfluous(problems) == {
        "a2": REPEATED,
        "a3": REPEATED,
        "b1": CONTRADICTED,
        "b2": CONTRADICTED,
    }


def test_fixed_texts_around_questions_are_removed_from_texts_and_chats():
    chat = ({"role": "system", "content": "Solve: s"}, {"role": "user", "content": "Solve: y?"})
    bare = strip_wrapping({0: asked("Solve: x? End."), 3: asked(chat)}, ["Solve: ", " End."])
    assert bare[0].prompt == "x?"
    assert [m["content"] for m in bare[3].prompt] == ["Solve: s", "y?"]
    assert chat[1]["content"] == "Solve: y?"


def test_a_fixed_text_that_no_question_has_is_refused():
    with pytest.raises(ValueError, match=r"no question begins or ends with 'solve: '"):
        strip_wrapping({0: asked("Solve: x?")}, ["solve: "])

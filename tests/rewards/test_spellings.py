import pytest
from judging import verify_answer

from e3rl.rewards.spellings import usual_spellings
from e3rl.rewards.verdict import CORRECT, WRONG

GOLDS = [
    "46",
    "-7",
    "12345",
    "8.0",
    r"\frac{3}{7}",
    "3/7",
    r"\dfrac{\sqrt{2}}{2}",
    r"5\text{ cm}",
    r"35\%",
    r"83^\circ",
    r"(1,-2)",
    r"\left[0,1\right)",
    "$x=5$",
    r"2^{10}\pi",
    r"\text{odd}",
    "B",
    r"x^{2}-3x+1",
    r"\$4.50",
]
OTHERS = {"46": "47", r"\frac{3}{7}": r"\frac{3}{8}", r"(1,-2)": "(1,2)", r"\text{odd}": "even"}


@pytest.mark.parametrize("gold", GOLDS)
def test_a_gold_answer_scores_in_every_usual_spelling(gold: str) -> None:
    for name, completion in usual_spellings(gold).items():
        verdict = verify_answer(completion, gold, "Find it.", "math_box")
        assert verdict == CORRECT, (name, completion)


@pytest.mark.parametrize("gold", OTHERS)
def test_no_spelling_of_another_answer_scores(gold: str) -> None:
    for name, completion in usual_spellings(OTHERS[gold]).items():
        assert verify_answer(completion, gold, "Find it.", "math_box") == WRONG, name


def test_spellings_say_the_same_in_another_form() -> None:
    found = usual_spellings("-12345")
    assert found["commas in braces"] == r"Thus the answer is $\boxed{-12{,}345}$."
    assert found["squared unit"] == r"Thus the answer is $\boxed{-12345\text{ cm}^2}$."
    assert found["true minus"] == r"Thus the answer is $\boxed{−12345}$."
    assert usual_spellings(r"\frac{3}{7}")["slashes"] == r"Thus the answer is $\boxed{3/7}$."
    assert usual_spellings("-3/7")["fractions"] == r"Thus the answer is $\boxed{-\frac{3}{7}}$."
    assert usual_spellings("(1,2)")["sized brackets"].endswith(r"{\left(1,2\right)}$.")
    assert usual_spellings(r"\left(1,2\right)")["sized brackets"].endswith("{(1,2)}$.")
    assert "commas" not in usual_spellings("999")
    assert not {"unit", "degrees", "name"} & usual_spellings(r"5\text{ cm}").keys()
    assert usual_spellings("$x=5$")["box"] == r"Thus the answer is $\boxed{x=5}$."


def test_each_spelling_is_given_once() -> None:
    inside = [text for name, text in usual_spellings("46").items() if "Thus" in text]
    assert len(set(inside)) == len(inside)

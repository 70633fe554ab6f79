import pytest
from judging import check_golds, verify_answer

from e3rl.rewards.answer_reader import AnswerFormat


def test_golds_that_completions_can_match_pass() -> None:
    check_golds([("a", "12"), ("b", "-3"), ("c", "12")], "integer_box")
    check_golds([("a", r"\frac{1}{2}"), ("b", "46 cm^2")], "math_box")


def test_every_gold_that_cannot_be_matched_is_named_once() -> None:
    with pytest.raises(ValueError, match="2 gold answers") as error:
        check_golds([("a", "12"), ("b", "1/2"), ("c", "x"), ("d", "x")], "integer_box")
    assert "problem b: gold answer '1/2'" in str(error.value)
    assert "problem c: gold answer 'x'" in str(error.value)
    assert "problem d" not in str(error.value)


def test_a_long_list_is_cut_and_counted() -> None:
    with pytest.raises(ValueError, match=r"30 gold answers[\s\S]*and 10 more"):
        check_golds([(str(i), f"x{i}") for i in range(30)], "integer_box")


@pytest.mark.parametrize("answer_format", ["integer_box", "math_box", "hashes", "last_number"])
def test_a_derivation_is_no_gold_answer(answer_format: AnswerFormat) -> None:
    gold = f"{'She has 3 + 4 = 7. ' * 9}#### 7"
    with pytest.raises(ValueError, match='set answer_after="####"') as error:
        check_golds([("a", gold)], answer_format)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("answer_format", "gold"),
    [
        *(("math_box", "x" * 301), ("integer_box", "1" * 301), ("hashes", "y" * 301)),
        *(("completion", "1+" * 200), ("last_number", "1" * 301)),
    ],
)
def test_a_gold_answer_longer_than_any_that_is_read_is_refused(
    answer_format: AnswerFormat, gold: str
) -> None:
    assert verify_answer(f"#### \\boxed{{{gold}}}", gold, "", answer_format).status == "unparsed"
    with pytest.raises(ValueError, match=r"than 300 are not read; .* raise reward\.max_answer"):
        check_golds([("a", gold)], answer_format)


def test_the_shortest_spelling_of_a_gold_answer_counts() -> None:
    check_golds([("a", "0" * 300 + "7"), ("b", f"{'~' * 300}x")], "math_box")


@pytest.mark.parametrize("gold", ["Paris", "yes", r"\text{True}", "n+m", "(a,b)", "A"])
def test_words_are_no_gold_answers_where_the_last_number_is_read(gold: str) -> None:
    check_golds([("a", gold)], "math_box")
    with pytest.raises(ValueError, match="is no number, as answer_format=last_number reads"):
        check_golds([("a", gold)], "last_number")


@pytest.mark.parametrize(
    ("gold", "number"), [(r"\pi", "3.14159265"), ("e", "2.71828183"), ("x = 5", "5"), ("7 km", "7")]
)
def test_what_a_number_equals_is_a_gold_answer_where_the_last_number_is_read(
    gold: str, number: str
) -> None:
    assert verify_answer(f"so it is {number}", gold, "", "last_number").is_correct
    check_golds([("a", gold)], "last_number")

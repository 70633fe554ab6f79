import pytest
from judging import check_golds

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

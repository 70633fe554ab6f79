import pytest
from judging import check_golds


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

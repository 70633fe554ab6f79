"""Where the answer of a completion stands, form by form."""

from typing import get_args

import pytest

from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader, answer_instruction
from e3rl.rewards.maths import MathScorer
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import Verdict

OPTIONS = "Options: (A) 1 (B) 2 (C) 3 (D) 4. "
CHOOSING_B = [
    *("The correct option is B.", "So the answer is option B.", "The answer should be B."),
    *("Therefore, B.", "Final choice: B", "The answer is not A but B.", "the answer is choice B"),
    *("The letter is b.", "So the answer must be the option (B), not (C).", "I would choose **B**"),
    *("Hence the answer is therefore B because 2 is even.", "I think (B) fits.", "So\n**B**\n"),
]
CHOOSING_NONE = [
    *("", "(A) is wrong. (B) is wrong. (C) is right. (D) is wrong.", "It is not (A).", "A or B."),
    *(
        "The answer is not A.",
        "It can't be A.",
        "The answer is A or B.",
        "All except A.",
        "Vitamin C.",
    ),
    *("Neither A nor B.", "It is (B) or (C), I think.", "The answer is **not B**."),
]


@pytest.mark.parametrize(
    ("completion", "number"),
    [
        ("12 and 34 make 46.", "46"),
        ("it costs $1,234.50.", "1,234.50"),
        ("so x = -3", "-3"),
        ("so 5-3", "3"),  # a subtraction, no sign
        ("5 - 3 = 2, or 2.0", "2.0"),
        ("f(2)-1", "1"),
        ("one of -4", "-4"),
        ("(-4)", "-4"),
        ("about 3/4 of it", "3/4"),
        ("1.5e-3", "1.5e-3"),
        ("a half is .5", ".5"),
        ("1, 2, 3", "3"),
        ("1,2,3", "3"),
        ("in 2024, 17 of them", "17"),
        ("**46**", "46"),
        (r"\boxed{46}", "46"),
        ("x2", "2"),
        (r"so it is \frac{3}{4}.", r"\frac{3}{4}"),
        (r"so x = -\dfrac{1}{2}$", r"-\dfrac{1}{2}"),
        (r"so it is 3\frac12", r"3\frac12"),
        (r"x^2 \frac{1}{2}", r"\frac{1}{2}"),
        (r"so it is \frac{1}{-2}", r"\frac{1}{-2}"),
        ("it takes 3 1/2 hours", "3 1/2"),
        ("of 2 3 1/2", "1/2"),
        ("It is 10 / 4", "10 / 4"),
        ("the total is 1 000.", "1 000"),
        ("of 1 234 000 people", "1 234 000"),
        ("5 100 dollar bills", "100"),  # two numbers
        ("5 10 100", "100"),
        ("The answer is $12{,}345$.", "12,345"),
        (r"so x = -1\,234\,567.5", "-1,234,567.5"),
        (r"$1,\!000$ or 2~000", "2,000"),
        (r"5\,km and 3\,1", "1"),  # no group of three digits
        ("nothing", None),
        ("", None),
        ("٣", None),
    ],
)
def test_the_last_number_is_read_with_its_sign_groups_and_fraction(
    completion: str, number: str | None
) -> None:
    assert AnswerReader("last_number").read(completion) == number


@pytest.mark.parametrize(
    ("answer_format", "completion", "answer"),
    [
        ("hashes", "6*7 = 42\n#### 42\n", "42"),
        ("hashes", "#### 1\n#### 1,234", "1,234"),
        ("hashes", "####", None),
        ("hashes", "#### 5 ####", "5"),
        ("hashes", "#### 4 #### 5", "5"),
        ("hashes", "#### 7\n####\n", "7"),
        ("last_number", "so 12\u202f345 in all", "12,345"),
        ("hashes", "42", None),
        ("hashes", "#### **42**", "42"),
        ("hashes", "**#### 42**", "42"),
        ("hashes", "#### `1,234`", "1,234"),
        ("hashes", "#### **`42`**", "42"),
        ("hashes", "#### *a* and *b*", "*a* and *b*"),
        ("hashes", "#### x^*", "x^*"),
        ("hashes", "#### **", None),
        ("answer_tags", "<answer>**42**</answer>", "42"),
        ("answer_tags", "<answer>\n_42_\n</answer>", "42"),
        ("answer_tags", "<answer>*.\n.*</answer>", "*.\n.*"),  # a grid
        ("answer_tags", "<think>41</think><answer>\n42\n</answer>", "42"),
        ("answer_tags", "<answer>1</answer> no <ANSWER>2</ANSWER>", "2"),
        ("answer_tags", "<answer></answer>", None),
        ("answer_tags", "<answer>42", None),
        ("answer_tags", "<answer>1<answer>2</answer>3</answer>", "2"),
        ("answer_tags", "An <answer> tag ends it. <answer>5</answer>", "5"),
        ("answer_tags", "<answer>1</answer><answer>2", "1"),
        ("answer_tags", "1</answer>", None),
        ("choice", "the answer is: ** (B) **", "B"),
        ("choice", "The answer is (C).", "C"),
        ("choice", "Answer: b", "B"),
        ("choice", "answer is **D**", "D"),
        ("choice", "Answer: b\nAnd not (A).", "B"),
        ("choice", "The answer is a number", None),
        ("choice", "The answer is B because (A) is wrong.", "B"),
        ("choice", "The correct answer is: **B**. Option (C) ignores friction.", "B"),
        ("choice", "The answer is $B$.", "B"),
        ("choice", r"The answer is $\boldsymbol{B}$, not (C).", "B"),
        ("choice", "The answer: I think it is (C)", "C"),
        ("choice", "The answer is I. Option (C) is wrong.", "I"),
        ("choice", "The answer isn't A, it is (D)", "D"),
        ("choice", "The answer is Boston (B)", "B"),
        ("choice", r"\boxed{\textbf{(B)}}", "B"),
        ("choice", r"\boxed{B) 12}", "B"),
        ("choice", r"\boxed{Bees}", None),
        ("choice", "I think (A), no, (B)", "B"),
        ("choice", r"so \boxed{\text{E}}", "E"),
        ("choice", r"so \boxed{42}", None),
        *(("choice", OPTIONS + text, "B") for text in CHOOSING_B),
        *(("choice", OPTIONS + text, None) for text in CHOOSING_NONE),
        ("choice", "A. 1\nB. 2\nC. 3", None),
        ("choice", "A) 1\nB) 2\nSo it is B.", "B"),
        ("choice", "Options: A, B, C, D", None),
        ("choice", "Options:\nA\nB\nC", None),
        ("choice", "(B) is too small, so (C)", "C"),
        ("choice", r"\boxed{\text{Option B}}", "B"),
        ("choice", r"\boxed{A or B}", None),
        ("choice", "Option B", "B"),
        ("choice", " C. ", "C"),
        ("choice", "CAB", None),
        ("completion", "  yes \n", "yes"),
        ("completion", " \n", None),
    ],
)
def test_each_form_has_its_place(
    answer_format: AnswerFormat, completion: str, answer: str | None
) -> None:
    assert AnswerReader(answer_format).read(completion) == answer


def test_a_pattern_of_the_user_is_read_by_its_group_or_whole() -> None:
    grouped = AnswerReader("pattern", r"Result: (\w+)")
    assert grouped.read("Result: a. Result: b.") == "b"
    assert grouped.read("none") is None
    assert AnswerReader("pattern", r"\d+").read("1 22 333.") == "333"


def test_a_longer_answer_is_none() -> None:
    assert AnswerReader("hashes", max_chars=3).read("#### 123") == "123"
    assert AnswerReader("hashes", max_chars=3).read("#### 1234") is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (("roman",), "answer_format='roman'; choose one of integer_box, math_box"),
        (("pattern",), "answer_format=pattern needs a regular expression"),
        (("hashes", r"\d"), "the others take none"),
        (("pattern", "(1"), r"answer_pattern='\(1' is no regular expression: missing \)"),
        (("hashes", None, 0), "max_answer_chars=0; it must be at least 1"),
    ],
)
def test_readers_that_read_nothing_are_refused(settings: tuple[object, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AnswerReader(*settings)  # type: ignore[arg-type]


FORMS: list[AnswerFormat] = [
    *("integer_box", "math_box", "last_number", "hashes", "answer_tags", "choice", "completion")
]


@pytest.mark.parametrize("answer_format", FORMS)
def test_a_gold_answer_spelled_in_its_form_is_right_and_another_one_is_not(
    answer_format: AnswerFormat,
) -> None:
    scorer = MathScorer(AnswerReader(answer_format))
    own, other = ("B", "C") if answer_format == "choice" else ("46", "47")
    for spelled, status in ((scorer.spell(own), "correct"), (scorer.spell(other), "wrong")):
        assert spelled
        for completion in spelled.values():
            begun = scorer.begin(completion, Question("", "", own))
            verdict = begun if isinstance(begun, Verdict) else scorer.score([begun.content])[0]
            assert verdict.status == status, completion


@pytest.mark.parametrize("answer_format", FORMS)
def test_known_answers_come_out_as_known(answer_format: AnswerFormat) -> None:
    scorer = MathScorer(AnswerReader(answer_format))
    cases = list(scorer.known_answers())
    assert {case.status for case, _ in cases} == {"correct", "wrong", "unparsed"}
    for case, begun in cases:
        case.check(begun if isinstance(begun, Verdict) else scorer.score([begun.content])[0])


def test_a_letter_is_no_mathematics() -> None:
    scorer = MathScorer(AnswerReader("choice"))
    scorer.check([Question("a", "", "(b)")])
    with pytest.raises(ValueError, match="problem a: gold answer '46' is not a letter"):
        scorer.check([Question("a", "", "46")])


def test_the_prompt_asks_for_the_form_that_is_read() -> None:
    boxed = r"Please reason step by step, and put your final answer within \boxed{}."
    assert answer_instruction("math_box") == answer_instruction("integer_box") == boxed
    assert "####" in answer_instruction("hashes")
    assert (
        answer_instruction("pattern") == answer_instruction(None) == "Please reason step by step."
    )


@pytest.mark.parametrize("answer_format", get_args(AnswerFormat))
@pytest.mark.parametrize(
    "piece",
    [
        *(
            "<answer>",
            "</answer>",
            "answer is ",
            " ",
            "*",
            "1,111",
            "9",
            "9.",
            "-",
            "####",
            "{",
            "}",
        ),
        *("{}", r"\boxed{", r"\boxed ", r"\boxed{}", "\\", "(A)", "answer: ", "e9", "/"),
        *(
            "5 ",
            "111 ",
            "1 000 ",
            r"\frac{1",
            "option ",
            "the answer is option ",
            "A, ",
            "B",
            "not ",
        ),
        *("**", "`", "_", "is\n", "or A "),
    ],
)
def test_a_hundred_thousand_letters_are_read_in_one_pass(
    answer_format: AnswerFormat, piece: str
) -> None:
    """What looks ahead from every place would take hours, and this test with it."""
    reader = AnswerReader(answer_format, pattern="x" if answer_format == "pattern" else None)
    text = piece * (100_000 // len(piece))
    for completion in (text, rf"\boxed{{{text}", f"answer is {text}x"):
        answer = reader.read(completion)
        assert answer is None or len(answer) <= 300

import json
import logging
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judging import check_gold, verify_answer

from e3rl.rewards import verifier
from e3rl.rewards.answer_formats import same_text
from e3rl.rewards.maths import build_math_rewards
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import CORRECT, ERROR, UNPARSED, WRONG, Verdict
from e3rl.rewards.verifier import compare_answers, judge_by_text

# Differently written golds of equal value, up to a unit or the name of an unknown.
EQUAL_BY_VALUE = {("$k=1$", "1"), ("10.0", "10"), ("2.0", "2")}
NO_UNITS = [
    *("squared", "factorial", "or more", "or six", "is wrong", "plus one", "at least"),
    *("million", "thousand", "dozen", "halves"),
]
DATA = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.mark.parametrize(
    ("answer", "gold", "status"),
    [
        ("46", "46", "correct"),
        ("46.0", "46", "correct"),
        ("46", "46.0", "correct"),
        ("x=46", "46", "correct"),
        ("5", "x=5", "correct"),
        ("1{,}234", "1234", "correct"),
        (r"\frac{1}{2}", "0.5", "correct"),
        (r"\frac{2}{4}", r"\frac{1}{2}", "correct"),
        (r"\frac{1}{29322216}", r"\dfrac{1}{29,\!322,\!216}", "correct"),
        ("80", r"80 \%", "correct"),
        (r"90^\circ", "90", "correct"),
        (r"40 \text{ ft}", r"40\text{ feet}", "correct"),
        (r"40\text{ cm}^2", "40", "correct"),
        ("40", r"40\mathrm{~cm}^{3}", "correct"),
        (r"35\%.", r"35\%", "correct"),
        (r"\sqrt{2}+1", r"1+\sqrt{2}", "correct"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", "correct"),
        (r"2^{10}\pi", r"1024\pi", "correct"),
        (r"2^{2014}", r"4^{1007}", "correct"),
        ("{2, 1}", "1,2", "correct"),
        (r"\left[0, 1\right)", "[0,1)", "correct"),
        ("2√2", r"2\sqrt{2}", "correct"),
        (r"\sqrt{x+1}", "√(x+1)", "correct"),
        ("x²", "x^2", "correct"),
        ("10⁻²", "0.01", "correct"),
        ("2½", "5/2", "correct"),
        (r"(-\infty, 3]", "(-∞,3]", "correct"),
        ("12\u202f345", "12345", "correct"),  # one blank that breaks no line
        ("12 345", "12345", "wrong"),  # and two numbers
        ("x³", "x^2", "wrong"),
        ("√3", r"\sqrt{2}", "wrong"),
        ("47", "46", "wrong"),
        (r"\sqrt{3}", r"\sqrt{2}", "wrong"),
        ("1, 3", "1,2", "wrong"),
        (r"\begin{oops}", r"\sqrt{2}", "unparsed"),
        # an operation is no answer where a number is asked for
        ("12+34", "46", "wrong"),
        ("7*5+6*4", "59", "wrong"),
        ("45+1", "46", "wrong"),
        ("3^2", "9", "wrong"),
        (r"3\text{ cm}^2", "9", "wrong"),
        (r"3\text{}^2", "9", "wrong"),
        ("2(23)", "25", "wrong"),
        ("(3)(4)", "7", "wrong"),
        (r"\frac{92}{2}", "46", "wrong"),
        (r"\sqrt{2116}", "46", "wrong"),
        ("46=12+34", "46", "wrong"),
        (r"\frac{1}{3}+\frac{1}{3}", r"\frac{2}{3}", "wrong"),
        ("12+34=46", "46", "correct"),
        # two numbers are not one; digit groups are told by a thin space
        ("4 6", "46", "wrong"),
        (r"4\,6", "46", "wrong"),
        (r"4 6\pi", r"46\pi", "wrong"),
        (r"4\,600", "4600", "correct"),
        # spaces, signs and marks at the end say nothing
        (r"35\,\%", "35", "correct"),
        (r"7\;", "7", "correct"),
        (r"\sqrt{2}\,", r"1\cdot\sqrt{2}", "correct"),
        (r"(1,2)\;", "(1, 2.0)", "correct"),
        # the sign of a fraction stands anywhere
        (r"\frac{1}{-2}", "-1/2", "correct"),
        (r"\frac{-3}{-4}", "3/4", "correct"),
        (r"\frac{-3}{-4}", "-3/4", "wrong"),
        (r"\frac{-92}{-2}", "46", "wrong"),
        # the empty set in each spelling
        (r"\varnothing", r"\emptyset", "correct"),
        (r"\{\}", "∅", "correct"),
        (r"\{0\}", r"\varnothing", "wrong"),
        # rankings and values of names are in order
        ("CBA", "ABC", "wrong"),
        ("A, B, C", "B, A, C", "wrong"),
        (r"\text{B, A, C}", "B, A, C", "correct"),
        ("2,3", "x=3,y=2", "wrong"),
        ("(3.0, 2)", "x=3,y=2", "correct"),
        ("y=2,x=3", "x=3,y=2", "correct"),
        (r"(\frac12, 3)", "y=3,x=0.5", "correct"),
        ("-1,1", "x=1,x=-1", "correct"),
        # one side of an equation in several names is none; of one name it is the value
        ("3", "x+y=3", "wrong"),
        ("3=y+x", "x+y=3", "correct"),
        ("x^2=507", "507", "correct"),
        # angles in degrees
        (r"\cos 1^\circ", r"\cos 1", "wrong"),
        (r"2\cos 70^\circ", r"2\sin 20^\circ", "correct"),
        (r"2\cos 71^\circ", r"2\sin 20^\circ", "wrong"),
        (r"\cos\frac{\pi}{9}", r"\cos 20^{\circ}", "correct"),
        (r"\cos 20", r"\cos 20^\circ", "correct"),
        (r"\frac{\sin 10°}{2}", r"\frac12\sin(10^\circ)", "correct"),
        (r"\tan 60^\circ", r"\sqrt{3}", "wrong"),
        # powers of ten are numbers, whichever side they stand on
        ("10^3", "1000", "correct"),
        ("10^{3}", "1e3", "correct"),
        ("1e3", "1000", "correct"),
        ("1e3", "10^3", "correct"),
        ("1000", "10^3", "correct"),
        ("1000", "1e3", "correct"),
        ("1.5e-3", "0.0015", "correct"),
        ("10^4", "1000", "wrong"),
        ("1e4", "1000", "wrong"),
        # what an answer equates has to be equal
        ("45=46", "46", "wrong"),
        ("x=45=46", "46", "wrong"),
        ("45=x=46", "46", "wrong"),
        ("12+35=46", "46", "wrong"),
        (r"\sqrt{3}=\sqrt{2}", r"\sqrt{2}", "wrong"),
        ("2(23)=46", "46", "correct"),
        ("m+n=12+34=46", "46", "correct"),
        (r"\frac{1}{3}=0.333", "0.333", "correct"),
        (r"\frac{1}{3}=0.334", "0.334", "wrong"),
        (r"\sqrt{2}=x=1.41", "1.41", "correct"),
        # units are compared where both are known
        (r"5\text{ m}", r"5\text{ km}", "wrong"),
        ("5 m", r"5\text{ km}", "wrong"),
        (r"5.0\text{ m}", r"5\text{ km}", "wrong"),
        (r"x=5\text{ m}^2", r"5\text{ m}", "wrong"),
        (r"\$5", r"5\text{ cents}", "wrong"),
        ("5", r"5\text{ km}", "correct"),
        (r"5\text{ km}", "5", "correct"),
        (r"5\text{ kilometers}", r"5\mathrm{~km}", "correct"),
        (r"5\text{ km long}", r"5\text{ m}", "correct"),
        # bare words say what is counted, unless they are mathematics or names of unknowns
        ("15 books", "15", "correct"),
        ("16 books", "15", "wrong"),
        ("1,000 dollars", "1000", "correct"),
        ("1000", "1,000 dollars", "correct"),
        ("100 dollars", r"\$100", "correct"),
        ("x = 7.50 dollars", "7.5", "correct"),
        (r"\frac{1}{2} cups of milk", "0.5", "correct"),
        ("30 minutes", "30 hours", "wrong"),
        ("3*4 books", "12", "wrong"),
        ("3 halves", "3", "wrong"),
        ("3 dozen", "3", "wrong"),
        ("4 squared", "4", "wrong"),
        ("2 alpha", "2", "wrong"),
        ("5 xyzw", "5", "wrong"),
        # text behind a number is a unit or a noun, and nothing that makes another number of it
        *((rf"5\text{{ {words}}}", "5", "wrong") for words in NO_UNITS),
        *((rf"5.0\text{{ {words}}}", "5", "wrong") for words in NO_UNITS),
        *((rf"\sqrt{{5}}\text{{ {words}}}", r"\sqrt{5}", "wrong") for words in NO_UNITS),
        (r"5\mathrm{i}", "5", "wrong"),
        (r"5\text{}^2", "5", "wrong"),
        ("5 books is wrong", "5", "wrong"),
        (r"5\text{ times}", "5", "correct"),
        (r"5\text{ dollars each}", "5", "correct"),
        (r"\sqrt{5}\text{ square units}", r"\sqrt{5}", "correct"),
        # scales are part of the number
        (r"5\text{ million}", "5000000", "correct"),
        ("5 million", "5{,}000{,}000", "correct"),
        (r"\$2.5\text{ million}", r"2500000\text{ dollars}", "correct"),
        (r"2.5\text{ million}", r"2.5 \times 10^6", "correct"),
        ("5000000", r"5\text{ million}", "correct"),
        ("5", r"5\text{ million}", "wrong"),
        (r"5\text{ dozen eggs}", "60", "correct"),
        (r"5\text{ thousand km}", r"5000\text{ m}", "wrong"),
        (r"5\text{ million} = 6", "6", "wrong"),
        # mixed numbers and thousands behind blanks
        ("3 1/2", "3.5", "correct"),
        ("3 1/2", r"\frac{7}{2}", "correct"),
        ("3 4/2", "5", "wrong"),
        ("1 000", "1000", "correct"),
        ("1 234 000", "1234000", "correct"),
        ("1 234", "1234", "wrong"),
        # numbers to a base
        ("1011_2", "1011_8", "wrong"),
        ("2043_{5}", "2043_6", "wrong"),
        (r"1011\text{ (base 2)}", "1011_8", "wrong"),
        ("1011_{8}", "1011_8", "correct"),
        ("1011", "1011_8", "correct"),
        # halves of the day
        (r"3\text{ pm}", r"3\text{ am}", "wrong"),
        (r"10:30 \text{ p.m.}", r"10:30 \text{ a.m.}", "wrong"),
        ("10:30 pm", "10:30 am", "wrong"),
        (r"12\text{ midnight}", r"12\text{ noon}", "wrong"),
        (r"9:45\text{ AM}", "9:45 a.m.", "correct"),
        ("5:21 pm", r"5:21\textsc{pm}", "correct"),
        # small numbers differ by more than they are
        ("0.0000002", "10^{-7}", "wrong"),
        ("0.0000001", "0.0000004", "wrong"),
        ("0.0", "0.0000004", "wrong"),
        ("0.0000001", "0", "wrong"),
        ("(0.0000003, 2)", "(0.0000001, 2)", "wrong"),
        ("[0, 0.0000003)", "[0, 0.0000001)", "wrong"),
        ("0.0000003", r"10^{-7}\pi", "wrong"),
        ("0.0000001", "10^{-7}", "correct"),
        (r"4 \cdot 10^{-7}", "0.0000004", "correct"),
        ("0.000333", r"\frac{1}{3000}", "correct"),
        ("0.333333", r"\frac{1}{3}", "correct"),
        ("3.141593", r"\pi", "correct"),
    ],
)
def test_boxed_mathematics_is_judged(answer: str, gold: str, status: str) -> None:
    verdict = verify_answer(rf"so \boxed{{{answer}}}", gold, "Find it.", "math_box")
    assert verdict == Verdict(float(status == "correct"), status)


def test_an_algebra_system_alone_would_reward_the_restated_question() -> None:
    """Why the text rules exist; if math-verify ever changes its mind they can be reconsidered."""
    for answer, gold in (("12+34", "46"), ("7*5+6*4", "59"), ("2(23)", "25"), ("(3)(4)", "7")):
        assert compare_answers(gold, answer) == CORRECT
        assert judge_by_text(answer, gold, "") == WRONG


def test_copied_expression_is_wrong_even_though_it_is_equal() -> None:
    prompt = r"Simplify $\frac{\sqrt{8}}{2}$."
    assert verify_answer(r"\boxed{\sqrt{2}}", r"\sqrt{2}", prompt, "math_box") == CORRECT
    assert verify_answer(r"\boxed{\frac{\sqrt8}{2}}", r"\sqrt{2}", prompt, "math_box") == WRONG


def test_a_power_of_ten_to_work_out_is_no_answer() -> None:
    assert verify_answer(r"\boxed{10^3}", "1000", "Compute $10^3$.", "math_box") == WRONG
    assert verify_answer(r"\boxed{10^3}", "10^3", "Is it $10^2$ or $10^3$?", "math_box") == CORRECT


def test_expression_of_the_prompt_is_right_where_it_is_the_gold_answer() -> None:
    prompt = r"Is it $2\sqrt{6}$ or $\sqrt{6}+1$?"
    assert verify_answer(r"\boxed{2\sqrt6}", r"2\sqrt{6}", prompt, "math_box") == CORRECT


@pytest.mark.parametrize(
    "completion",
    ["so 12+34=46", "46", r"\boxed{}", r"\boxed{46", r"\boxed{46} \boxed{", "$46$", r"\boxed{ }"],
)
def test_a_number_without_a_closed_box_never_earns(completion: str) -> None:
    for answer_format in ("integer_box", "math_box"):
        assert verify_answer(completion, "46", "12+34=?", answer_format) == UNPARSED


def test_a_number_inside_an_unreadable_box_never_earns() -> None:
    assert compare_answers("46", r"\begin{oops} 46").reward == 0
    assert verify_answer(r"\boxed{I guess it is 46}", "46", "", "math_box").reward == 0


@pytest.mark.end_to_end
@settings(deadline=None, max_examples=60)
@given(
    st.from_regex(r"-?[0-9]{1,12}", fullmatch=True),
    st.integers(-1, 1),
    st.sampled_from(["", "0", "000"]),
)
def test_integer_path_agrees_with_math_verify(gold: str, shift: int, zeros: str) -> None:
    number = int(gold) + shift
    answer = f"{'-' if number < 0 else ''}{zeros}{abs(number)}"
    fast = judge_by_text(answer, gold, "")
    assert fast == compare_answers(gold, answer)
    assert fast == (CORRECT if shift == 0 else WRONG)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [("-0", "0"), ("0", "-0"), ("00", "-000"), ("-7", "7"), ("9" * 300, "9" * 299 + "8")],
)
def test_integer_path_agrees_with_math_verify_at_the_edges(answer: str, gold: str) -> None:
    assert judge_by_text(answer, gold, "") == compare_answers(gold, answer)


def test_gold_is_compared_first(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []

    def spy(gold: list[object], answer: list[object], timeout_seconds: None) -> bool:
        seen.append((str(gold[0]), str(answer[0])))
        return False

    monkeypatch.setattr(verifier, "verify", spy)
    compare_answers(r"\sqrt{5}", r"\sqrt{1+4}")
    assert seen == [("sqrt(5)", "sqrt(1 + 4)")]


def test_an_exhausted_stack_is_an_error_verdict_and_memory_the_worker_s_concern(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise outside

    monkeypatch.setattr(verifier, "verify", fails)
    outside: type[Exception] = RecursionError
    assert compare_answers("3", "x") == ERROR
    outside = MemoryError
    with pytest.raises(MemoryError):
        compare_answers("3", "x")


def test_bugs_propagate(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> bool:
        raise TypeError("a bug")

    monkeypatch.setattr(verifier, "verify", fails)
    with pytest.raises(TypeError, match="a bug"):
        compare_answers("3", "x")


def test_verdicts_are_frozen_and_picklable() -> None:
    assert pickle.loads(pickle.dumps(CORRECT)) == CORRECT
    with pytest.raises(AttributeError):
        CORRECT.reward = 0.0  # type: ignore[misc]


def test_unusable_gold_is_named_with_its_problem() -> None:
    check_gold(" 12 ", "integer_box", "mine:3")
    check_gold("If it rains", "math_box", "mine:4")
    with pytest.raises(ValueError, match=r"mine:5.*'1/2'.*math_box"):
        check_gold("1/2", "integer_box", "mine:5")
    with pytest.raises(ValueError, match="mine:6"):
        check_gold(" ", "math_box", "mine:6")


def test_nothing_is_logged_about_switched_off_alarms(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        compare_answers(r"\sqrt{2}", "1")
    assert not caplog.records


@pytest.mark.end_to_end
def test_workers_need_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, e3rl.rewards.pool, e3rl.rewards.shaping\n"
        "print(sorted({'torch', 'lightning', 'pandas'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def real_problems() -> list[tuple[str, str, str]]:
    """(id, prompt, gold) of the published sample of the E3 data."""
    if not DATA.is_dir():
        pytest.skip(f"the E3 data sample is not at {DATA}")
    problems = []
    for name in ("e3_train_sample", "e3_valid"):
        rows = pq.read_table(DATA / f"{name}.parquet").to_pylist()
        problems += [
            (f"{name}:{i}", row["prompt"][0]["content"], row["reward_model"]["ground_truth"])
            for i, row in enumerate(rows)
        ]
    with (DATA / "e3_test_sample.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    return problems + [(f"test:{i}", row["prompt"], row["answer"]) for i, row in enumerate(rows)]


def test_every_real_gold_scores_on_its_own_problem() -> None:
    for name, prompt, gold in real_problems():
        completion = f"Thus the answer is \\boxed{{{gold}}}."
        assert verify_answer(completion, gold, prompt, "math_box") == CORRECT, (name, gold)


@pytest.mark.slow
def test_every_real_gold_can_be_parsed_and_equals_itself_for_math_verify() -> None:
    for name, _, gold in real_problems():
        check_gold(gold, "math_box", name)
        assert compare_answers(gold, gold) == CORRECT, (name, gold)


@pytest.mark.slow
def test_real_golds_score_on_another_problem_only_where_the_values_are_equal() -> None:
    problems = real_problems()
    draw = random.Random(0)
    pairs = [(p, draw.choice(problems)[2]) for p in problems for _ in range(3)]
    pairs = [(p, other) for p, other in pairs if not same_text(other, p[2])]
    with build_math_rewards("math_box", deadline_s=5.0) as pool:
        for (_, prompt, gold), other in pairs:
            pool.submit(f"\\boxed{{{other}}}", Question("", prompt, gold))
        verdicts = pool.collect()
    equal = {(p[2], other) for (p, other), v in zip(pairs, verdicts, strict=True) if v == CORRECT}
    assert equal == EQUAL_BY_VALUE
    assert sum(v.status == "timeout" for v in verdicts) <= 2

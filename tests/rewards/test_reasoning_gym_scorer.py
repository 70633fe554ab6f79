import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="pip install 'reasoning-gym==0.1.25'")

from e3rl.rewards.answer_reader import AnswerFormat, AnswerReader
from e3rl.rewards.gym_task import GymTask, read_entry, write_entry
from e3rl.rewards.reasoning_gym import ReasoningGymScorer, build_reasoning_gym_rewards, confined
from e3rl.rewards.scorer import Question
from e3rl.rewards.verdict import CORRECT, UNPARSED, WRONG, Verdict


def question(task: str, entry: Mapping[str, Any] | None = None) -> Question:
    """The first problem of a task, or one of it with this entry."""
    known = GymTask(task)
    entry = known.dataset(seed=1)[0] if entry is None else entry
    row = {"task": task, "settings": known.settings, "entry": write_entry(entry)}
    return Question(f"{task}:0", "", str(entry.get("answer")), row)


def make_scorer(answer_format: AnswerFormat = "last_number", **settings: Any) -> ReasoningGymScorer:
    return ReasoningGymScorer(AnswerReader(answer_format), **settings)


def judge(scorer: ReasoningGymScorer, completion: str, asked: Question) -> Verdict:
    begun = scorer.begin(completion, asked)
    return begun if isinstance(begun, Verdict) else scorer.score([begun.content])[0]


SUM = {"question": "1200 + 34 =", "answer": "1234", "metadata": {}}


@pytest.mark.parametrize(
    ("completion", "verdict"),
    [
        ("1234", CORRECT),
        ("The answer is 1,234.", CORRECT),
        ("The answer is 34", WRONG),
        ("12345", WRONG),  # 4/5 by the task's scorer
        ("I do not know", UNPARSED),
        ("", UNPARSED),
    ],
)
def test_the_answer_that_is_read_must_be_wholly_right(completion: str, verdict: Verdict) -> None:
    assert judge(make_scorer(), completion, question("chain_sum", SUM)) == verdict


def test_partial_credit_is_paid_where_it_is_asked_for() -> None:
    asked = question("chain_sum", SUM)
    partly = make_scorer(partial_credit=True)
    assert judge(partly, "12345", asked) == Verdict(0.8, "wrong")
    assert judge(partly, "1234", asked) == CORRECT
    lenient = make_scorer(partial_credit=True, correct_above=0.7)
    assert judge(lenient, "12345", asked) == Verdict(0.8, "correct")


@pytest.mark.parametrize(
    "settings", [{"correct_above": 0.5}, {"correct_above": 1, "partial_credit": True}]
)
def test_a_threshold_needs_partial_credit_below_1(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give a number from 0 to below 1"):
        make_scorer(**settings)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        ("prime_factorization", "two times three"),
        ("boxnet", "[1, 2]"),
        ("game_of_life", "{}"),
        ("coin_flip", "1e999"),
        ("spiral_matrix", "exit()"),
    ],
)
def test_a_text_at_which_the_task_raises_is_unparsed(task: str, text: str) -> None:
    assert judge(make_scorer("completion"), text, question(task)) == UNPARSED


def test_a_fault_that_is_not_the_models_propagates() -> None:
    broken = question("prime_factorization", {"question": ""})
    with pytest.raises(KeyError, match="answer"):
        judge(make_scorer("completion"), "2", broken)
    with pytest.raises(ValueError, match="no task"):
        make_scorer().score([("no task", "{}", question("chain_sum", SUM).row["entry"], "2")])


def test_an_answer_that_is_code_changes_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    asked, scorer = question("spiral_matrix"), make_scorer("completion")
    for code in (f"open({str(mark)!r}, 'w')", f"__import__('os').system('touch {mark}')"):
        assert not judge(scorer, f"[{code}]", asked).is_correct
        assert not mark.exists()


def test_the_guard_ends_with_the_scoring(tmp_path: Path) -> None:
    with confined():
        assert Path(__file__).read_text()
        with pytest.raises(PermissionError, match="may not do this: open"):
            os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
        with pytest.raises(PermissionError, match="may not do this: socket"):
            __import__("socket").socket()
    (tmp_path / "file").write_text("free again")


def test_entries_come_back_as_they_were() -> None:
    entry = GymTask("knights_knaves").dataset(seed=1)[0]  # tuples and strings of NumPy
    assert read_entry(write_entry(entry)) == entry
    with pytest.raises((TypeError, SyntaxError)):
        write_entry({"metadata": object()})


def test_golds_that_cannot_be_given_or_are_refused_are_named() -> None:
    words = {"question": "", "answer": "cat, dog", "metadata": {}}
    with pytest.raises(ValueError, match="cannot be given as last_number; set reward"):
        make_scorer().check([question("chain_sum", SUM), question("word_sorting", words)])
    wrong = question("prime_factorization")
    wrong = Question(wrong.id, "", "2 × 2 × 2 × 2 × 3", wrong.row)
    with pytest.raises(ValueError, match=r"problem prime_factorization:0: .* is refused by task"):
        make_scorer("completion").check([wrong])
    with pytest.raises(ValueError, match=r"1 problems .*\n.*sums:1: is not generated by reasoning"):
        make_scorer().check([Question("sums:1", "1+1", "2")])


@pytest.mark.parametrize("answer_format", ["last_number", "answer_tags", "choice", "completion"])
def test_known_answers_are_judged_as_they_should(answer_format: AnswerFormat) -> None:
    scorer = make_scorer(answer_format)
    cases = list(scorer.known_answers())
    assert [case.status for case, _ in cases] == ["correct", "wrong"]
    for case, begun in cases:
        case.check(begun if isinstance(begun, Verdict) else scorer.score([begun.content])[0])


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("So it is 5 000.", "5000"),
        ("So it is $12{,}345$.", "12345"),
        ("So it is −1,234.", "-1234"),
        ("So it is 3 100/7.", "3 100/7"),  # a mixed number
    ],
)
def test_groups_of_digits_are_one_number_to_a_task(completion: str, answer: str) -> None:
    assert make_scorer().read(completion) == answer


@pytest.mark.end_to_end
def test_workers_judge_what_tasks_raise_at_and_go_on() -> None:
    asked = question("prime_factorization")
    with build_reasoning_gym_rewards("completion", workers=1) as pool:
        pool.check([asked])
        pool.self_test()
        for text in ("two times three", asked.answer, "exit()", "7 × 7"):
            pool.submit(text, asked)
        assert pool.collect() == [UNPARSED, CORRECT, UNPARSED, WRONG]

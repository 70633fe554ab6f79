"""Every task of reasoning-gym, as training uses it: generated, loaded, resumed and scored."""

import pickle
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache

import pytest
import yaml

pytest.importorskip("reasoning_gym", reason="pip install 'reasoning-gym==0.1.25'")

from compositions import composed
from e3rl.data.loader import PromptLoader
from e3rl.data.problem import Problem
from e3rl.data.reasoning_gym import normal_form, reasoning_gym_problems, split_of
from e3rl.data.reasoning_gym_data import ReasoningGymData
from e3rl.rewards.answer_reader import AnswerReader
from e3rl.rewards.gym_task import GymTask, list_tasks, read_entry
from e3rl.rewards.reasoning_gym import ReasoningGymScorer
from e3rl.rewards.verdict import UNPARSED, Verdict

pytestmark = pytest.mark.end_to_end  # generates in processes of their own

EACH = 8
# More than a third of a second for a problem, in reasoning-gym itself.
SLOW = {
    *("futoshiki", "knight_swap", "puzzle24", "sokoban", "sudoku", "zebra_puzzles"),
    "intermediate_integration",
}
# Every solution of the puzzle is right, and reasoning-gym knows none.
WITHOUT_GOLD = {"boxnet", "rush_hour"}
TASKS = [pytest.param(t, marks=pytest.mark.slow) if t in SLOW else t for t in list_tasks()]


@cache
def generated(slow: bool, each: int) -> Mapping[str, list[Problem]]:
    """Training problems by task, all drawn in one process."""
    tasks = [task for task in list_tasks() if (task in SLOW) == slow]
    problems: dict[str, list[Problem]] = {task: [] for task in tasks}
    for problem in reasoning_gym_problems(tasks, "train", each * len(tasks), seed=3):
        problems[problem.source].append(problem)
    return problems


def problems_of(task: str, each: int = EACH) -> list[Problem]:
    return generated(task in SLOW, each)[task]


def judge(scorer: ReasoningGymScorer, completion: str, problem: Problem) -> Verdict:
    """As a worker would, which gets a copy."""
    begun = scorer.begin(completion, problem.question())
    if isinstance(begun, Verdict):
        return begun
    return scorer.score([pickle.loads(pickle.dumps(begun.content))])[0]


@pytest.fixture(scope="module")
def scorer() -> ReasoningGymScorer:
    return ReasoningGymScorer(AnswerReader("answer_tags", max_chars=10_000))


def test_there_are_as_many_tasks_as_the_pinned_version_has() -> None:
    assert len(list_tasks()) == 105  # and `composite`, which mixes others
    assert set(list_tasks()) >= SLOW | WITHOUT_GOLD


@pytest.mark.parametrize("task", TASKS)
def test_a_task_gives_different_problems_of_its_split_with_ids_of_their_own(task: str) -> None:
    problems = problems_of(task)
    entries = [read_entry(problem.row["entry"]) for problem in problems]
    forms = [normal_form(task, e["question"], e["metadata"]) for e in entries]
    assert [e["question"] for e in entries] == [p.prompt for p in problems]
    assert len(set(forms)) == len({p.id for p in problems}) == EACH
    assert {split_of(form) for form in forms} == {"train"}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_gives_the_same_problems_again_in_another_process(task: str) -> None:
    first = {problem.id: problem for problem in problems_of(task)}
    again = problems_of(task, each=2)
    assert again == [first[problem.id] for problem in again]


@pytest.mark.parametrize("task", TASKS)
def test_a_loader_of_a_task_resumes_where_it_was(task: str) -> None:
    def loader() -> PromptLoader:
        return PromptLoader(problems_of(task), lambda p: (p.text, [1, 2]), 2, seed=1)

    whole = [batch.prompt_ids for batch in loader()]
    stopped, resumed = loader(), loader()
    next(iter(stopped))
    resumed.load_state_dict(stopped.state_dict())
    rest = [next(iter(resumed)) for _ in whole[1:]]
    assert [batch.prompt_ids for batch in rest] == whole[1:]
    rows = {problem.id: problem.row for problem in problems_of(task)}
    assert all(b.problem_rows == [rows[key] for key in b.prompt_ids] for b in rest)


@pytest.mark.parametrize("task", TASKS)
def test_gold_answers_of_a_task_are_right_and_nothing_ends_the_run(
    task: str, scorer: ReasoningGymScorer
) -> None:
    problems = problems_of(task)
    golds = [spelled for p in problems for spelled in scorer.spell(p.answer).values()]
    assert len(golds) == (0 if task in WITHOUT_GOLD else EACH)
    right = [judge(scorer, gold, p).status for gold, p in zip(golds, problems, strict=False)]
    assert right == ["correct"] * len(golds)
    scorer.check(problem.question() for problem in problems)
    said = ["The answer is 3.", "((P", "{1: [", '{"a": 1}', "[[1]]", "1/0", "x" * 999, *golds]
    for problem in problems[:2]:
        assert judge(scorer, "no tags", problem) == UNPARSED
        assert judge(scorer, "<answer> </answer>", problem) == UNPARSED
        for answer in said:
            verdict = judge(scorer, f"<answer>{answer}</answer>", problem)
            assert verdict.reward == float(verdict.is_correct)
            assert verdict.status in ("correct", "wrong", "unparsed")


def terms(problem: Problem) -> tuple[tuple[str, int], ...]:
    """What a sum adds up, in any order, by a reading of its own."""
    found = re.findall(r"([+-]?) ?(\d+)", problem.text.split(":")[1])
    return tuple(sorted(Counter(f"{sign or '+'}{value}" for sign, value in found).items()))


def test_no_sum_is_trained_on_and_validated_on_in_another_order() -> None:
    knobs = {"chain_sum": {"max_terms": 3, "max_digits": 1}}
    train = reasoning_gym_problems(["chain_sum"], "train", 300, knobs=knobs)
    validation = reasoning_gym_problems(["chain_sum"], "validation", 100, seed=5, knobs=knobs)
    sums = [*map(terms, train), *map(terms, validation)]
    assert len(set(sums)) == 400
    assert not {p.id for p in train} & {p.id for p in validation}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 + 4", "4 + 3"),
        ("7 - 2 + 4", "4 + 7 - 2"),
        ("3 - -4", "4 + 3"),
        ("2 * 3 + 5", "5 + 3 * 2"),
        ("1.50 + 2", "2 + 1.50"),
    ],
)
def test_sums_in_another_order_have_one_normal_form(one: str, other: str) -> None:
    forms = {normal_form("chain_sum", "", {"expression": e}) for e in (one, other)}
    assert len(forms) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("4 - 3", "3 - 4"), ("6 / 2", "2 / 6"), ("(2 + 3) * 4", "2 + 3 * 4"), ("12 + 3", "1 + 23")],
)
def test_expressions_of_other_values_have_other_normal_forms(one: str, other: str) -> None:
    forms = {normal_form("basic_arithmetic", "", {"expression": e}) for e in (one, other)}
    assert len(forms) == 2


def test_a_mixture_is_shared_by_weights_and_levels() -> None:
    problems = reasoning_gym_problems(
        {"chain_sum": 3, "gcd": 1}, "train", 16, levels={"chain_sum": [0, 2]}
    )
    counts = Counter((problem.source, problem.level) for problem in problems)
    assert counts == {("chain_sum", 0): 6, ("chain_sum", 2): 6, ("gcd", None): 4}
    numbers = [int(n) for p in problems if p.level == 0 for n in re.findall(r"\d+", p.text)]
    assert max(numbers) < 10  # a curriculum's level 0: one digit


def test_a_task_may_be_named_alone_and_the_level_that_it_states_is_taken() -> None:
    (problem,) = reasoning_gym_problems("bitwise_arithmetic", "train", 1)
    assert problem.level == 2


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (GymTask("chain_summ"), "no task 'chain_summ'; it has chain_sum"),
        (GymTask("composite"), "no task 'composite'"),
        (GymTask("gcd", knobs={"digits": 1}), "no knob digits; it has min_numbers, max_numbers"),
        (GymTask("gcd", knobs={"min_numbers": 9}), "gcd refuses .*max_numbers must be >="),
        (GymTask("gcd", knobs={"max_value": "x"}), "gcd refuses .*max_value"),
        (GymTask("gcd", level=7), "gcd has levels 0 to 3, not 7"),
        (GymTask("acre", level=0), "acre has no levels"),
    ],
    ids=lambda value: "",
)
def test_unknown_tasks_knobs_and_levels_are_refused_with_those_there_are(
    task: GymTask, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task.dataset()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tasks": []}, "name at least one task"),
        ({"tasks": {"gcd": 0}}, "weights must be numbers above 0, not gcd: 0"),
        ({"knobs": {"lcm": {}}}, "knobs: lcm is not among the tasks gcd"),
        ({"tasks": ["gcd", "lcm"], "size": 1}, "size=1 leaves no problem for lcm"),
        ({"split": "test"}, "choose one of train, validation"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(given: dict[str, object], message: str) -> None:
    settings = {"tasks": ["gcd"], "split": "train", "size": 4} | given
    with pytest.raises(ValueError, match=message):
        reasoning_gym_problems(**settings)


@pytest.mark.parametrize("tasks", ["gcd", "[chain_sum, gcd]", "{chain_sum: 3, gcd: 1}"])
def test_one_task_several_or_weights_can_be_chosen_on_the_command_line(tasks: str) -> None:
    cfg = composed("data=reasoning_gym", f"data.tasks={tasks}")
    assert cfg.data.tasks == yaml.safe_load(tasks)


def test_a_task_with_too_few_questions_says_how_many_it_has() -> None:
    pairs = [(a, b) for a in range(1, 5) for b in range(a, 5)]
    forms = [normal_form("gcd", "", {"numbers": pair}) for pair in pairs]
    there = [split_of(form) for form in forms].count("train")
    assert 0 < there < len(set(forms)) == 10
    message = f"gave only {there} different questions to train on, not 50"
    with pytest.raises(ValueError, match=message):
        reasoning_gym_problems(["gcd"], "train", 50, knobs={"gcd": {"max_value": 4}})


def test_lists_stand_for_the_tuples_of_a_task() -> None:
    dataset = GymTask("puzzle24", knobs={"operators": ["+", "-"]}).dataset()
    assert dataset.config.operators == ("+", "-")


def test_a_data_module_has_two_sets_of_the_same_tasks_and_no_question_in_common() -> None:
    data = ReasoningGymData(
        ["chain_sum"], 4, size=24, validation_size=8, knobs={"chain_sum": {"max_digits": 1}}
    )
    train = reasoning_gym_problems(
        ["chain_sum"], "train", 24, knobs={"chain_sum": {"max_digits": 1}}
    )
    assert list(data.train_problems) == train
    assert len(data.validation_problems) == 8
    assert {p.id for p in data.train_problems}.isdisjoint(p.id for p in data.validation_problems)

import random
import re
from collections import Counter
from itertools import pairwise

import pytest

from e3rl.data.arithmetic import (
    FAMILIES,
    LEVELS,
    SPLIT_BUCKETS,
    Arithmetic,
    arithmetic_problems,
    draw,
    follow,
)

SPLITS = ("train", "validation", "warm_start")


def evaluated(prompt: str) -> int:
    """The answer by Python's own arithmetic, or by trying every value of x."""
    if not prompt.endswith(",x=?"):
        return eval(prompt.removesuffix("=?"))
    equation = compile(prompt.removesuffix(",x=?").replace("=", "=="), "equation", "eval")
    solutions = [x for x in range(-50, 51) if eval(equation, {"x": x})]
    assert len(solutions) == 1, prompt
    return solutions[0]


def drawn(family: int, level: int, n: int = 60) -> list[Arithmetic]:
    rng = random.Random(f"{family} {level}")
    return [draw("train", family, level, rng) for _ in range(n)]


def every_cell() -> list[Arithmetic]:
    return [p for f in range(len(FAMILIES)) for level in LEVELS for p in drawn(f, level)]


# -- answers


@pytest.mark.parametrize("split", SPLITS)
def test_gold_answers_are_those_of_an_independent_evaluation(split):
    for problem in arithmetic_problems(split, 400, seed=3):
        assert int(problem.answer) == evaluated(problem.prompt), problem.prompt


def test_every_shown_step_is_true():
    for problem in every_cell():
        *steps, (nothing, answer) = follow(problem.derivation())
        assert nothing == ""
        assert steps[-1][1] == answer == problem.answer
        for expression, value in steps:
            assert eval(expression.replace("/", "//")) == value, (problem.prompt, expression)
            assert eval(expression) == value  # divisions leave no remainder


def test_prompts_use_the_characters_of_the_embedded_tokenizer_and_name_their_family():
    for problem in every_cell():
        assert re.fullmatch(r"[0-9+\-*/%()=,?x]+", problem.prompt)
        assert problem.family in {family.__name__ for family in FAMILIES}
        assert problem.level in LEVELS


def test_a_mistaken_value_carries_on_into_the_steps_after_it():
    problem = next(p for p in drawn(0, 3) if p.family == "chain")  # four numbers, three steps
    right = follow(problem.derivation())
    first_wrong = iter([10, 0, 0])
    wrong = follow(problem.derivation(), lambda value: value + next(first_wrong))
    assert wrong[0] == (right[0][0], right[0][1] + 10)
    assert [value for _, value in wrong] == [value + 10 for _, value in right]
    assert wrong[1][0].startswith(str(right[0][1] + 10))


def test_a_mistake_of_any_size_still_leads_to_an_answer():
    rng = random.Random(0)
    for problem in every_cell():
        steps = follow(problem.derivation(), lambda value: value + rng.choice((-value, -10, 7)))
        assert isinstance(steps[-1][1], int)


# -- problem sets


@pytest.mark.end_to_end
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_splits_share_no_prompt_for_any_seeds(seed):
    prompts = {
        split: {p.prompt for p in arithmetic_problems(split, 360, seed + shift)}
        for shift, split in enumerate(SPLITS)
    }
    for split, own in prompts.items():
        assert len(own) == 360  # distinct
        for other in SPLITS:
            assert other == split or not own & prompts[other]


def test_every_bucket_belongs_to_one_split():
    assert sorted(b for buckets in SPLIT_BUCKETS.values() for b in buckets) == list(range(8))


@pytest.mark.parametrize(("split", "size"), [("train", 2048), ("validation", 256)])
def test_the_default_sets_are_distinct_and_mix_families_and_levels_evenly(split, size):
    problems = arithmetic_problems(split, size)
    cells = Counter((p.source, p.level) for p in problems)
    assert len({p.prompt for p in problems}) == len({p.id for p in problems}) == size
    assert len(cells) == len(FAMILIES) * len(LEVELS)
    assert max(cells.values()) - min(cells.values()) <= 1
    assert {p.source for p in problems} == {f.__name__ for f in FAMILIES}


def test_problems_come_in_mixed_order():
    problems = arithmetic_problems("train", 360)
    halves = [Counter(p.level for p in part) for part in (problems[:180], problems[180:])]
    assert all(abs(half[level] - 60) < 25 for half in halves for level in LEVELS)
    sources = [p.source for p in problems]
    assert sum(a == b for a, b in pairwise(sources)) < 120


def test_a_seed_repeats_its_problems_and_another_draws_others():
    first, again, other = (arithmetic_problems("train", 90, seed) for seed in (5, 5, 6))
    assert first == again
    assert len({p.prompt for p in first} & {p.prompt for p in other}) < 45


def test_a_size_below_the_number_of_cells_is_possible():
    assert len(arithmetic_problems("train", 1)) == 1
    assert len({(p.source, p.level) for p in arithmetic_problems("train", 17)}) == 17


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_1_is_refused(size):
    with pytest.raises(ValueError, match=f"size={size}: ask for at least 1"):
        arithmetic_problems("train", size)


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"split='test': choose one of .*train.*validation"):
        arithmetic_problems("test", 5)


def test_more_problems_than_a_family_and_level_has_are_refused():
    with pytest.raises(ValueError, match=r"validation problems of family \w+ level \d could not"):
        arithmetic_problems("validation", 18 * 400)

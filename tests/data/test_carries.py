import random
import re
from collections import Counter
from itertools import product

import pytest

from e3rl.data.carries import (
    CARRIES,
    GREATEST,
    LONGEST,
    Chain,
    carried,
    carry_problems,
    draw,
    split_of,
)

SPLITS = ("train", "validation", "warm_start")
WORKED = Chain(81, (("-", 48), ("*", 3), ("+", 29)))  # 33, 99, 128: a borrow, no carry, a carry


def test_a_chain_is_written_from_the_inside_out():
    assert WORKED.prompt == "((81-48)*3)+29=?"
    assert Chain(7, (("+", 12),)).prompt == "7+12=?"


def test_the_short_way_leaves_out_what_goes_over_from_the_units():
    assert WORKED.right_values == [33, 99, 128]
    assert WORKED.answer == 128
    assert WORKED.carries == 2
    assert WORKED.values((False, True, True)) == [43, 129, 158]  # 11-8=3, and 8-4 without a borrow
    assert WORKED.values((True, False, False)) == [33, 99, 118]
    assert WORKED.values((False, False, False)) == [43, 129, 148]


@pytest.mark.parametrize(
    ("left", "sign", "right", "over"),
    [
        (47, "+", 38, 10),
        (41, "+", 38, 0),
        (81, "-", 48, -10),
        (88, "-", 48, 0),
        (17, "*", 8, 50),
        (12, "*", 4, 0),
        (197, "+", 95, 10),
    ],
)
def test_what_goes_over_is_in_tens(left, sign, right, over):
    assert carried(left, sign, right) == over


def test_strict_is_that_no_chain_of_ways_that_drops_something_ends_right():
    rng = random.Random(0)
    seen = Counter()
    for _ in range(2000):
        operations = []
        for _ in range(rng.randint(1, LONGEST)):
            sign = rng.choice("+-*")
            operations.append((sign, rng.randint(2, 9) if sign == "*" else rng.randint(11, 60)))
        chain = Chain(rng.randint(11, 99), tuple(operations))
        right = chain.right_values
        paths = [chain.values(ways) for ways in product((True, False), repeat=len(right))]
        within = all(0 <= value <= GREATEST for path in paths for value in path)
        expected = within and all(path == right or path[-1] != right[-1] for path in paths)
        assert chain.is_strict == expected, chain
        seen[expected] += 1
    assert min(seen.values()) > 100


def test_two_slips_that_cancel_are_not_strict():
    assert Chain(45, (("+", 28), ("-", 25))).values((False, False)) == [63, 48]  # 73-25 = 48, too
    assert not Chain(45, (("+", 28), ("-", 25))).is_strict


@pytest.mark.parametrize("carries", CARRIES)
def test_drawn_chains_have_the_carries_asked_for_and_every_length_that_allows_them(carries):
    rng = random.Random(1)
    chains = [draw("train", carries, rng) for _ in range(300)]
    assert {chain.carries for chain in chains} == {carries}
    assert all(chain.is_strict and split_of(chain.prompt) == "train" for chain in chains)
    lengths = Counter(len(chain.operations) for chain in chains)
    possible = range(max(1, carries), LONGEST + 1)
    assert set(lengths) == set(possible)
    assert max(abs(n / 300 - 1 / len(possible)) for n in lengths.values()) < 0.1


@pytest.mark.parametrize("split", SPLITS)
def test_gold_answers_are_those_of_an_independent_evaluation(split):
    for problem in carry_problems(split, 200, seed=3):
        assert int(problem.answer) == eval(problem.prompt.removesuffix("=?")), problem.prompt


def test_problems_are_distinct_in_equal_strata_and_mixed_order():
    problems = carry_problems("train", 202)
    assert len({problem.prompt for problem in problems}) == 202
    levels = [problem.level for problem in problems]
    assert Counter(levels) == {0: 51, 1: 51, 2: 50, 3: 50}
    assert levels != sorted(levels)
    ranks = {0: 0.125, 1: 0.375, 2: 0.625, 3: 0.875}  # the middle of each quarter
    assert [problem.prior for problem in problems] == [ranks[level] for level in levels]
    for problem in problems:
        assert problem.id == f"carries-{problem.level}:{problem.prompt}"
        assert len(re.findall(r"[-+*]", problem.prompt)) >= problem.level


def test_splits_share_no_prompt_for_any_seeds():
    prompts = [{p.prompt for p in carry_problems(split, 200, seed)} for seed in (0, 1)
               for split in SPLITS]  # fmt: skip
    for first, second in product(range(6), repeat=2):
        if first % 3 != second % 3:
            assert not prompts[first] & prompts[second]


def test_a_seed_repeats_its_problems_and_another_draws_others():
    assert carry_problems("train", 40, seed=1) == carry_problems("train", 40, seed=1)
    assert carry_problems("train", 40, seed=1) != carry_problems("train", 40, seed=2)


@pytest.mark.parametrize("size", [0, -3])
def test_a_size_below_1_is_refused(size):
    with pytest.raises(ValueError, match=f"size={size}: ask for at least 1"):
        carry_problems("train", size)


def test_an_unknown_split_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"split='test'.*'train', 'validation', 'warm_start'"):
        carry_problems("test", 8)  # type: ignore[arg-type]


def test_more_problems_than_a_stratum_has_are_refused(monkeypatch):
    monkeypatch.setattr("e3rl.data.carries.OPERANDS", range(11, 13))
    monkeypatch.setattr("e3rl.data.carries.LONGEST", 1)
    monkeypatch.setattr("e3rl.data.carries.CARRIES", (0,))
    monkeypatch.setattr("e3rl.data.carries.possible", lambda value, carrying: (("+", (11, 12)),))
    with pytest.raises(ValueError, match="distinct train problems with 0 carries"):
        carry_problems("train", 10)

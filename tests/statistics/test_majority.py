"""maj@k against the enumeration of all subsets."""

from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.statistics.majority import majority_at_k, votes
from e3rl.statistics.pass_at_k import pass_at_k


def enumerated(right: int, others: list[int], n: int, k: int) -> Fraction:
    """The definition: every subset votes; ties are shared; who gives no answer abstains."""
    answers = [0] * right + [i for i, size in enumerate(others, start=1) for _ in range(size)]
    samples = answers + [None] * (n - len(answers))
    total, subsets = Fraction(0), 0
    for chosen in combinations(samples, k):
        counts = Counter(answer for answer in chosen if answer is not None)
        best = [answer for answer, c in counts.items() if c == max(counts.values())]
        total += Fraction(best.count(0), max(len(best), 1))
        subsets += 1
    return total / subsets


@st.composite
def ballots(draw: st.DrawFn) -> tuple[int, list[int], int, int]:
    right = draw(st.integers(0, 5))
    others = draw(st.lists(st.integers(0, 4), max_size=4).filter(lambda sizes: sum(sizes) <= 7))
    n = max(1, right + sum(others) + draw(st.integers(0, 2)))
    return right, others, n, draw(st.integers(1, n))


@settings(max_examples=60, deadline=None)
@given(ballots())
def test_maj_at_k_is_the_mean_over_all_subsets(ballot: tuple[int, list[int], int, int]) -> None:
    assert majority_at_k(*ballot) == pytest.approx(float(enumerated(*ballot)), abs=1e-12)


def test_worked_by_hand() -> None:
    # Right, right, wrong: of 3 pairs one is right twice, two are ties.
    assert majority_at_k(2, [1], 3, 2) == pytest.approx(2 / 3)
    # Two answers that stand alone and one that abstains: ties of two, or a single vote each.
    assert majority_at_k(1, [1], 3, 2) == pytest.approx((1 / 2 + 1 + 0) / 3)
    # All votes: the largest wins, equally large ones share.
    assert majority_at_k(3, [4], 8, 8) == 0
    assert majority_at_k(3, [3, 3], 9, 9) == pytest.approx(1 / 3)
    assert majority_at_k(1, [], 5, 5) == 1


@pytest.mark.end_to_end
@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_one_vote_is_pass_at_1(sizes: tuple[int, int]) -> None:
    n, right = sizes
    assert majority_at_k(right, [n - right], n, 1) == pytest.approx(right / n)


def test_without_wrong_answers_one_right_vote_is_enough() -> None:
    for k in (1, 2, 7, 128):
        expected = pass_at_k([256], [9], k)[0]
        assert majority_at_k(9, [], 256, k) == pytest.approx(expected, rel=1e-10)


def test_large_numbers_of_samples_keep_their_precision() -> None:
    # Equally many of three answers: each wins a third of the votes, whatever k is.
    for k in (1, 2, 16, 100, 128, 239):
        assert majority_at_k(80, [80, 80], 240, k) == pytest.approx(1 / 3, rel=1e-9)
    assert majority_at_k(800, [800, 800], 2400, 64) == pytest.approx(1 / 3, rel=1e-9)
    # A hundred answers that stand alone, one of them right.
    assert majority_at_k(1, [1] * 99, 256, 128) == pytest.approx(
        float(simulated(1, [1] * 99, 256, 128)), abs=0.004
    )


def simulated(right: int, others: list[int], n: int, k: int, draws: int = 20_000) -> np.float64:
    rng = np.random.default_rng(0)
    silent = n - right - sum(others)
    table = rng.multivariate_hypergeometric([right, *others, silent], k, size=draws)[:, :-1]
    best = table == table.max(axis=1, keepdims=True)
    return np.mean(best[:, 0] * (table[:, 0] > 0) / best.sum(axis=1))


def test_a_vote_of_many_favours_what_is_already_ahead() -> None:
    ahead = [majority_at_k(100, [80, 40], 220, k) for k in (1, 4, 16, 64, 128)]
    behind = [majority_at_k(80, [100, 40], 220, k) for k in (4, 16, 64, 128)]
    assert ahead == sorted(ahead)
    assert behind == sorted(behind, reverse=True)
    assert ahead[-1] == pytest.approx(float(simulated(100, [80, 40], 220, 128)), abs=0.01)


@pytest.mark.parametrize(
    ("ballot", "message"),
    [
        ((1, [1], 4, 5), r"maj@5 needs 1 <= k <= 4"),
        ((1, [1], 4, 0), r"maj@0 needs"),
        ((3, [2], 4, 1), r"must be >= 0 and at most n=4"),
        ((-1, [2], 4, 1), r"right=-1"),
    ],
)
def test_counts_that_make_no_sense_are_named(
    ballot: tuple[int, list[int], int, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        majority_at_k(*ballot)


def test_votes_are_counted_by_class_of_answers() -> None:
    classes, right = [0, 1, 0, None, 2, 1], [True, False, True, False, False, False]
    assert votes(classes, right) == (2, [2, 1])
    with pytest.raises(ValueError, match="right and wrong"):
        votes([0, 0], [True, False])

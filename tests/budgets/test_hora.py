import itertools

import numpy as np
import pytest
from played_steps import play

from e3rl.budgets.base import SingleRound
from e3rl.budgets.hora import Hora, hit_utility
from e3rl.budgets.posterior import BetaPosterior

# Posteriors (1, 9), (1, 3), (3, 7), (5, 5), (9, 1) under the prior (1, 1).
SEEN = {"a": (0, 8), "b": (0, 2), "c": (2, 8), "d": (4, 8), "e": (8, 8)}


def utility(a: float, b: float, n: int) -> float:
    posterior = BetaPosterior(np.array([a]), np.array([b]))
    return float(hit_utility(posterior, np.array([n]))[0])


def taught(**arguments: object) -> Hora:
    rule = Hora(**arguments)  # type: ignore[arg-type]
    rewards = [np.repeat([1.0, 0.0], [c, n - c]) for c, n in SEEN.values()]
    rule.observe(list(SEEN), rewards)
    return rule


def test_golden_hit_utilities() -> None:
    found = [utility(1, 1, n) for n in (0, 1, 2, 4, 8)]
    assert found == pytest.approx([0, 0.5, 2 / 3, 0.8, 8 / 9])
    assert utility(1, 9, 8) == pytest.approx(0.4706, abs=5e-5)


def test_hit_utility_is_the_mean_over_pass_rates() -> None:
    p = np.random.default_rng(0).beta(2.0, 5.0, 400_000)
    assert utility(2, 5, 6) == pytest.approx((1 - (1 - p) ** 6).mean(), abs=2e-3)


def test_golden_allocation() -> None:
    allocation = taught().decide(list(SEEN), 40, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    assert allocation.counts == [13, 10, 9, 6, 2]


def test_no_split_promises_more_hits() -> None:
    allocation = taught(n_high=9).decide(list(SEEN), 25, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    posterior = BetaPosterior(np.array([1.0, 1, 3, 5, 9]), np.array([9.0, 3, 7, 5, 1]))

    def hits(counts: object) -> float:
        return float(hit_utility(posterior, np.array(counts)).sum())

    splits = itertools.product(range(2, 10), repeat=5)
    best = max(hits(n) for n in splits if sum(n) == 25)
    assert hits(allocation.counts) == pytest.approx(best)


def test_promised_hits_are_of_the_decision_and_realised_ones_of_the_outcome() -> None:
    rule = taught()
    allocation = rule.decide(["a", "d"], 8, 1, 1).allocation
    assert isinstance(allocation, SingleRound)
    assert allocation.counts == [4, 4]
    rule.observe(["a", "d"], [np.zeros(4), np.array([0.0, 1.0, 1.0, 0.0])])
    expected = (utility(1, 9, 4) + utility(5, 5, 4)) / 2
    assert allocation.metrics()["expected_hits"] == pytest.approx(expected)
    assert rule.metrics()["hits"] == 0.5


def test_a_pilot_credits_prompts_that_were_hit_and_gives_the_rest_to_the_others() -> None:
    rates = {"hit": 1.0, "hard": 0.0, "harder": 0.0}
    rule = Hora("pilot", n_low=2, n_high=20)
    rule.observe(["hard", "harder"], [np.zeros(4), np.zeros(20)])
    board = play(rule, list(rates), rates, 24, 0, 0)
    assert board.rounds[0] == [2, 2, 2]
    assert board.rounds[1][0] == 0
    assert sum(board.rounds[1]) == 18
    # Posteriors (1, 7) and (1, 23): HU(m) = m/(7 + 1 + m - 1) and m/(23 + 1 + m - 1).
    best = max(range(19), key=lambda m: m / (7 + m) + (18 - m) / (23 + 18 - m))
    assert board.rounds[1][1:] == [best, 18 - best]
    metrics = board.metrics | rule.metrics()
    assert (metrics["rounds"], metrics["spent_share"], metrics["hits"]) == (2, 1, 1 / 3)
    assert "expected_hits" not in metrics


def test_a_pilot_that_hits_every_prompt_leaves_the_rest_unspent() -> None:
    rates = {"a": 1.0, "b": 1.0}
    rule = Hora("pilot", n_low=2, n_high=20)
    board = play(rule, list(rates), rates, 16, 0, 0)
    assert board.rounds == [[2, 2]]
    assert board.metrics["spent_share"] == 0.25


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode='both'"):
        Hora("both")  # type: ignore[arg-type]


def test_a_pilot_is_not_paid_in_tokens() -> None:
    with pytest.raises(ValueError, match=r"cost=tokens.*mode=history"):
        Hora("pilot", cost="tokens")

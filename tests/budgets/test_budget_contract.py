"""What every budget rule keeps, whatever was observed."""

import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_steps import Board, finish, play

from e3rl.budgets.base import Budget, SingleRound
from e3rl.budgets.cero import Cero
from e3rl.budgets.dynamic_sampling import DynamicSampling
from e3rl.budgets.e3_rank import E3Rank
from e3rl.budgets.hora import Hora
from e3rl.budgets.knapsack import Knapsack
from e3rl.budgets.mopps import Mopps
from e3rl.budgets.neyman import Neyman
from e3rl.budgets.pilot_commit import PilotCommit
from e3rl.budgets.sequential import Sequential
from e3rl.budgets.uniform import Uniform
from e3rl.budgets.utility import UtilityBudget
from e3rl.budgets.vcrl import Vcrl

Make = Callable[[], Budget]
LOW, HIGH = 3, 20
BOUNDS = {"n_low": LOW, "n_high": HIGH}
SINGLE: dict[str, Make] = {
    "uniform": Uniform,
    "e3_rank": lambda: E3Rank(**BOUNDS),
    "e3_rank_decayed": lambda: E3Rank(**BOUNDS, decay=0.5),
    "e3_rank_posterior": lambda: E3Rank(**BOUNDS, difficulty="posterior"),
    "e3_rank_length": lambda: E3Rank(**BOUNDS, difficulty="length", decay=0.5),
    "e3_rank_disagreement": lambda: E3Rank(**BOUNDS, difficulty="disagreement"),
    "knapsack": lambda: Knapsack(**BOUNDS),
    "knapsack_decayed": lambda: Knapsack(**BOUNDS, decay=0.5),
    "hora": lambda: Hora(**BOUNDS),
    "cero": lambda: Cero(8.0, **BOUNDS),
    "cero_decayed": lambda: Cero(**BOUNDS, decay=0.5),
    "sqrt_pq": lambda: Neyman(**BOUNDS),
    "vip_drgrpo": lambda: Neyman("vip_drgrpo", **BOUNDS),
    "gvm": lambda: Neyman("gvm", unit_norms=True, **BOUNDS),
    "cures": lambda: Neyman("cures", unit_norms=True, **BOUNDS),
    "gvm_measured": lambda: Neyman("gvm", **BOUNDS, decay=0.5),
    "cures_measured": lambda: Neyman("cures", **BOUNDS),
}
ROUNDS: dict[str, Make] = {
    "hora_pilot": lambda: Hora("pilot", **BOUNDS),
    "balanced": lambda: Sequential("balanced", per_round=3, max_rounds=4),
    "positive": lambda: Sequential("positive", per_round=3, max_rounds=4),
    "pilot_commit": lambda: PilotCommit(3, 9),
    "dynamic_sampling": DynamicSampling,
}
SELECTORS: dict[str, Make] = {
    "mopps": Mopps,
    "vcrl": Vcrl,
}
OTHERS: dict[str, Make] = {
    **SELECTORS,
    "knapsack_tokens": lambda: Knapsack(**BOUNDS, cost="tokens"),
    "cero_tokens": lambda: Cero(**BOUNDS, cost="tokens"),
    "hora_tokens": lambda: Hora(**BOUNDS, cost="tokens", decay=0.5),
    "neyman_tokens": lambda: Neyman(**BOUNDS, cost="tokens"),
}
EVERY = SINGLE | ROUNDS | OTHERS
single = pytest.mark.parametrize("make", SINGLE.values(), ids=SINGLE)
several = pytest.mark.parametrize("make", ROUNDS.values(), ids=ROUNDS)
every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)

RATES = st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.5, 0.9, 1.0]), min_size=1, max_size=9)
contract = settings(deadline=None, max_examples=10)


def named(rates: list[float]) -> dict[str, float]:
    return {f"p{i}": rate for i, rate in enumerate(rates)}


def total_of(n: int, extra: int) -> int:
    """Somewhere between the bounds of all rules."""
    return 4 * n + extra % (8 * n + 1)


def taught(make: Make, rates: dict[str, float], seen: int) -> Budget:
    """A rule that played two steps with the first `seen` prompts."""
    rule, ids = make(), list(rates)[:seen]
    for step in range(2 if ids else 0):
        play(rule, ids, rates, 4 * len(ids), step, epoch=step)
    return rule


@single
@contract
@given(rates=RATES, seen=st.integers(0, 9), extra=st.integers(0, 72))
def test_one_round_spends_exactly_the_total_within_the_bounds(
    make: Make, rates: list[float], seen: int, extra: int
) -> None:
    known = named(rates)
    total = total_of(len(rates), extra)
    allocation = taught(make, known, seen).decide(list(known), total, 2, 2).allocation
    assert isinstance(allocation, SingleRound)
    assert sum(allocation.counts) == total
    assert min(allocation.counts) >= LOW
    assert max(allocation.counts) <= HIGH


@pytest.mark.parametrize("make", SELECTORS.values(), ids=SELECTORS)
@contract
@given(rates=RATES, seen=st.integers(0, 9), extra=st.integers(0, 72))
def test_selected_prompts_share_exactly_the_total_and_the_others_get_nothing(
    make: Make, rates: list[float], seen: int, extra: int
) -> None:
    known = named(rates)
    total = total_of(len(rates), extra)
    allocation = taught(make, known, seen).decide(list(known), total, 2, 2).allocation
    assert isinstance(allocation, SingleRound)
    given_out = [n for n in allocation.counts if n]
    assert sum(given_out) == total
    assert len(given_out) == max(1, round(len(rates) / 2))
    assert 2 <= min(given_out) <= max(given_out) <= min(given_out) + 1


@pytest.mark.parametrize("name", [name for name in OTHERS if name.endswith("_tokens")])
@contract
@given(rates=RATES, seen=st.integers(0, 9), extra=st.integers(0, 72))
def test_expected_tokens_stay_within_what_the_uniform_budget_would_take(
    name: str, rates: list[float], seen: int, extra: int
) -> None:
    known = named(rates)
    rule, total = taught(OTHERS[name], known, seen), total_of(len(rates), extra)
    allocation = rule.decide(list(known), total, 2, 2).allocation
    assert isinstance(rule, UtilityBudget)
    assert isinstance(allocation, SingleRound)
    costs = rule.expected_tokens(list(known))
    assert costs is not None
    counts = np.array(allocation.counts)
    left = total * costs.mean() - counts @ costs
    assert LOW <= counts.min() <= counts.max() <= HIGH
    assert left >= -1e-6
    # What is left does not pay for one rollout more of the dearest prompt that has room.
    assert left < costs.max() + 1e-6 or (counts == HIGH).all()
    assert allocation.metrics()["token_cap"] == pytest.approx(total * costs.mean())
    assert allocation.metrics()["tokens_share"] == pytest.approx(
        counts @ costs / total / costs.mean()
    )


@several
@contract
@given(rates=RATES, seen=st.integers(0, 9), extra=st.integers(0, 72))
def test_rounds_spend_at_most_the_cap_within_the_bounds_and_report_both(
    make: Make, rates: list[float], seen: int, extra: int
) -> None:
    known = named(rates)
    rule, total = taught(make, known, seen), total_of(len(rates), extra)
    board = play(rule, list(known), known, total, 2, 2)
    sizes = [len(x) for x in board.rewards]
    assert sum(sizes) <= total
    assert all(size == 0 or 2 <= size <= HIGH for size in sizes)
    assert all(any(counts) for counts in board.rounds)
    metrics = board.metrics
    assert metrics["cap"] == total
    assert metrics["spent_share"] == pytest.approx(sum(sizes) / total)
    assert metrics["rounds"] == len(board.rounds)


@pytest.mark.end_to_end
@every
@contract
@given(rates=RATES, seen=st.integers(0, 9), data=st.data())
def test_permuting_the_prompts_permutes_what_they_get(
    make: Make, rates: list[float], seen: int, data: st.DataObject
) -> None:
    known = named(rates)
    shuffled = data.draw(st.permutations(list(known)))
    got = []
    for ids in (list(known), shuffled):
        board = play(taught(make, known, seen), ids, known, 7 * len(ids), 2, 2)
        got.append(dict(zip(ids, board.rewards, strict=True)))
    assert got[0] == got[1]


@pytest.mark.end_to_end
@every
@pytest.mark.parametrize("cut", [1, 3])
def test_a_rule_restored_in_the_middle_decides_as_if_never_stopped(make: Make, cut: int) -> None:
    torch = pytest.importorskip("torch")
    rates = named([0.0, 0.1, 0.3, 0.5, 0.5, 0.8, 0.95, 1.0])

    def steps(rule: Budget, first: int, last: int) -> list[Any]:
        log = []
        for step in range(first, last):
            ids = [x for x in rates if (int(x[1:]) + step) % 3]
            board = play(rule, ids, rates, 8 * len(ids), step, step // 2)
            log.append((board.rounds, board.metrics, rule.metrics()))
        return log

    whole = steps(make(), 0, 6)
    first, resumed = make(), make()
    steps(first, 0, cut)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    # NaN is not equal to itself, its text is.
    assert repr(steps(resumed, cut, 6)) == repr(whole[cut:])


@every
def test_the_first_round_of_unseen_prompts_is_uniform(make: Make) -> None:
    ids = [f"p{i}" for i in range(9)]
    counts = make().decide(ids, 76, 0, 0).allocation.next(board_of(ids))
    assert counts is not None
    given_out = [n for n in counts if n]
    assert max(given_out) - min(given_out) <= 1
    chooses = isinstance(make(), DynamicSampling | Mopps | Vcrl)  # prompts, which all get alike
    assert len(given_out) == len(ids) or (chooses and len(given_out) > 1)


def board_of(ids: list[str]) -> Any:
    class Empty:
        def tally(self) -> tuple[np.ndarray, np.ndarray]:
            return np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids))

    return Empty()


@every
def test_ties_are_drawn_anew_by_seed_and_step(make: Make) -> None:
    ids = [f"p{i}" for i in range(20)]
    firsts = [make().decide(ids, 90, step, 0).allocation.next(board_of(ids)) for step in (0, 0, 1)]
    assert firsts[0] == firsts[1]
    if len(set(firsts[0] or [])) > 1:
        assert firsts[0] != firsts[2]


@every
def test_figures_of_a_plan_and_metrics_of_a_rule_are_numbers_of_different_names(
    make: Make,
) -> None:
    rule = make()
    rates = named([0.0, 0.3, 1.0])
    metrics = play(rule, list(rates), rates, 24, 0, 0).metrics
    assert {"gini", "std", "at_min", "at_max"} <= metrics.keys()
    assert not metrics.keys() & rule.metrics().keys()
    metrics |= rule.metrics()
    assert {type(x) for x in metrics.values()} == {float}
    assert not [x for name, x in metrics.items() if math.isnan(x) and name != "rank_drift"]


@every
def test_deciding_the_next_step_early_changes_no_figure_of_the_current_one(make: Make) -> None:
    rates = named([0.0, 0.1, 0.3, 0.5, 0.5, 0.8, 0.95, 1.0])
    ids = list(rates)
    early, late = taught(make, rates, 8), taught(make, rates, 8)
    board = Board(ids, rates, 2)
    allocation = early.decide(ids, 64, 2, 1).allocation
    board.play(allocation)
    early.decide(ids, 64, 3, 1)
    finish(early, board)
    expected = play(late, ids, rates, 64, 2, 1)
    assert repr((allocation.metrics(), early.metrics())) == repr((expected.metrics, late.metrics()))


@every
def test_the_state_of_another_rule_is_refused_by_name(make: Make) -> None:
    with pytest.raises(ValueError, match=r"unknown keys \['other'\]"):
        make().load_state_dict(make().state_dict() | {"other": 1})


@every
def test_a_total_that_the_bounds_cannot_hold_is_refused(make: Make) -> None:
    rule = make()
    if not isinstance(rule, Uniform):
        with pytest.raises(ValueError, match=r"total=1|1 rollouts"):
            rule.decide(["a"], 1, 0, 0)

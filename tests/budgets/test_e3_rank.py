import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from e3rl.budgets.base import TRAITS, SingleRound
from e3rl.budgets.e3_rank import E3Rank

IDS = [f"p{i}" for i in range(8)]
# Solved i of 8 times in falling order: p0 is the easiest, ranks are 0, 1/8, ... 7/8.
SOLVED = [7, 6, 5, 4, 3, 2, 1, 0]


def rewards(solved: int, n: int = 8) -> np.ndarray:
    return np.array([1.0] * solved + [0.0] * (n - solved))


def taught(solved: Sequence[int] = SOLVED, **arguments: Any) -> E3Rank:
    """A rule that saw one epoch of IDS."""
    rule = E3Rank(**arguments)
    rule.decide(IDS, 64, step=0, epoch=0)
    rule.observe(IDS, [rewards(c) for c in solved])
    return rule


def counts(
    rule: E3Rank, ids: Sequence[str] = IDS, total: int = 64, step: int = 1, epoch: int = 1
) -> list[int]:
    allocation = rule.decide(ids, total, step, epoch).allocation
    assert isinstance(allocation, SingleRound)
    return allocation.counts


@pytest.mark.parametrize("difficulty", ["reward", "posterior"])
def test_equal_pass_rates_share_a_budget_alike_where_old_visits_fade(difficulty: str) -> None:
    rule = E3Rank(decay=0.9, difficulty=difficulty)
    for epoch in range(3):  # 1 of 3 rollouts right, or 2 of 6 ...
        rule.decide(IDS, 64, step=epoch, epoch=epoch)
        sizes = [3 * (1 + (i * (epoch + 1)) % 4) for i in range(8)]
        own = sizes if difficulty == "reward" else [6] * 8
        rule.observe(IDS, [rewards(n // 3, n) for n in own])
    assert counts(rule, step=3, epoch=3) == [8] * 8


def test_first_epoch_is_uniform_whatever_was_observed() -> None:
    rule = taught()
    assert counts(rule, step=1, epoch=0) == [8] * 8


def test_golden_allocations_of_the_second_and_third_epoch() -> None:
    assert counts(taught(), epoch=1) == [6, 7, 7, 8, 8, 9, 9, 10]
    assert counts(taught(), epoch=2) == [4, 5, 6, 7, 9, 10, 11, 12]
    assert counts(taught(), epoch=9) == [4, 5, 6, 7, 9, 10, 11, 12]


def test_strict_reference_gives_the_published_allocations() -> None:
    rule = taught(mode="strict_reference")
    assert counts(rule, epoch=1) == [6, 6, 7, 7, 8, 10, 10, 10]
    assert counts(rule, epoch=2) == [4, 5, 6, 7, 8, 10, 12, 12]


def test_weights_are_those_of_the_rollouts_that_are_spent_evenly() -> None:
    rule = taught(spend="weight")
    for epoch, wanted in ((0, [8] * 8), (1, [6, 7, 7, 8, 8, 9, 9, 10])):
        decision = rule.decide(IDS, 64, step=epoch, epoch=epoch)
        assert isinstance(decision.allocation, SingleRound)
        assert decision.allocation.counts == [8] * 8
        assert decision.weights is not None
        assert decision.weights.tolist() == [n / 8 for n in wanted]
    assert taught().decide(IDS, 64, step=1, epoch=1).weights is None
    with pytest.raises(ValueError, match="spend='both': use 'rollouts' or 'weight'"):
        E3Rank(spend="both")  # type: ignore[arg-type]


def test_bounds_widen_by_epoch_up_to_the_limits() -> None:
    rule = E3Rank()
    assert [rule.bounds(64, 8, e) for e in range(4)] == [(8, 8), (6, 10), (4, 12), (4, 12)]
    assert E3Rank(n_low=7, n_high=20, n_update=3).bounds(64, 8, 3) == (7, 17)


def test_mean_group_size_between_two_integers_gets_both_as_first_bounds() -> None:
    assert E3Rank().bounds(67, 8, 0) == (8, 9)
    assert sorted(counts(E3Rank(), total=67, epoch=0)) == [8] * 5 + [9] * 3


def test_ranks_are_over_all_prompts_seen_not_over_the_batch() -> None:
    rule = taught()
    decision = rule.decide(IDS[4:], 32, step=1, epoch=1)
    assert decision.ranks.tolist() == [4 / 8, 5 / 8, 6 / 8, 7 / 8]


def test_ranks_follow_the_cumulative_mean_over_visits_of_unequal_size() -> None:
    rule = E3Rank()
    rule.decide(["a", "b"], 16, 0, 0)
    rule.observe(["a", "b"], [rewards(1, 2), rewards(3, 8)])  # 0.5 and 0.375
    rule.observe(["a"], [rewards(2, 8)])  # a falls to 3/10
    assert rule.decide(["a", "b"], 16, 1, 1).ranks.tolist() == [0.5, 0.0]


def test_prompts_that_were_always_right_are_told_and_keep_their_mid_rank() -> None:
    rule = E3Rank()
    rule.decide(["a", "b", "c", "d"], 32, 0, 0)
    rule.observe(["a", "b", "c"], [rewards(8, 8), rewards(8, 8), rewards(7, 8)])
    decision = rule.decide(["a", "b", "c", "d"], 32, 1, 1)
    assert decision.ranks.tolist()[:3] == [0.5 / 3, 0.5 / 3, 2 / 3]
    assert decision.always_right is not None
    assert decision.always_right.tolist() == [True, True, False, False]
    by_length = E3Rank(difficulty="length")
    assert by_length.decide(["a"], 8, 0, 0).always_right is None


def test_ranks_stay_frozen_until_the_epoch_changes() -> None:
    rule = taught()
    before = rule.decide(IDS, 64, 1, 1).ranks
    rule.observe(IDS, [rewards(8, 8) if c < 4 else rewards(0, 8) for c in SOLVED])
    assert rule.decide(IDS, 64, 2, 1).ranks.tolist() == before.tolist()
    assert rule.decide(IDS, 64, 3, 2).ranks.tolist() != before.tolist()


def test_rank_update_by_steps_refreshes_and_widens_every_m_steps() -> None:
    rule = E3Rank(rank_update=2)
    rule.decide(IDS, 64, step=0, epoch=0)
    rule.observe(IDS, [rewards(c) for c in SOLVED])
    assert counts(rule, step=1, epoch=0) == [8] * 8
    assert counts(rule, step=2, epoch=0) == [6, 7, 7, 8, 8, 9, 9, 10]
    assert counts(rule, step=4, epoch=0) == [4, 5, 6, 7, 9, 10, 11, 12]


def test_unseen_prompts_weigh_as_the_middle_and_report_nan() -> None:
    rule = taught()
    # Ranks 0, 7/8 and unseen: weights 0, .875, .5 of 12 extra rollouts at bounds 4/12.
    decision = rule.decide(["p0", "p7", "new"], 24, 1, 2)
    assert math.isnan(decision.ranks[2])
    assert decision.ranks[:2].tolist() == [0, 7 / 8]
    assert counts(rule, ["p0", "p7", "new"], 24, 1, 2) == [4, 12, 8]


def test_prompts_never_seen_are_split_evenly_even_at_wide_bounds() -> None:
    assert counts(E3Rank(), epoch=2) == [8] * 8


def test_equal_mean_rewards_get_equal_ranks_and_counts() -> None:
    rule = taught(solved=[3] * 8)
    assert rule.decide(IDS, 64, 1, 2).ranks.tolist() == [3.5 / 8] * 8
    assert counts(rule, epoch=2) == [8] * 8


def traits(**values: Sequence[float]) -> dict[str, np.ndarray]:
    unknown = np.full(len(IDS), math.nan)
    return dict.fromkeys(TRAITS, unknown) | {
        name: np.array(x, dtype=float) for name, x in values.items()
    }


def test_few_misses_count_less_than_many_under_the_posterior() -> None:
    by = {name: E3Rank(difficulty=name) for name in ("reward", "posterior")}  # type: ignore[arg-type]
    for rule in by.values():
        rule.observe(["two", "twenty", "hit"], [rewards(0, 2), rewards(0, 20), rewards(1, 20)])
    ranks = {
        name: rule.decide(["two", "twenty", "hit"], 24, 1, 1).ranks for name, rule in by.items()
    }
    assert ranks["reward"].tolist() == [1.5 / 3, 1.5 / 3, 0]
    # Means 1/4, 1/22 and 2/22.
    assert ranks["posterior"].tolist() == [0, 2 / 3, 1 / 3]


@pytest.mark.parametrize("trait", TRAITS)
def test_a_trait_as_difficulty_ranks_larger_values_as_harder(trait: Any) -> None:
    rule = E3Rank(difficulty=trait)
    rule.describe(IDS, traits(**{trait: [5, 1, 4, 0, 2, 3, 7, math.nan]}))
    rule.observe(IDS, [rewards(c) for c in SOLVED])
    decision = rule.decide(IDS, 64, 1, 2)
    assert decision.ranks[:7].tolist() == pytest.approx([x / 7 for x in (5, 1, 4, 0, 2, 3, 6)])
    assert math.isnan(decision.ranks[7])


def test_a_trait_is_averaged_over_visits_and_equal_means_are_ties() -> None:
    rule = E3Rank(difficulty="length")
    for first, second in [(0.1, 0.3), (0.2, 0.2), (0.3, 0.1)]:
        rule.describe(IDS[:2], traits(length=[first, second]))
        rule.observe(IDS[:2], [rewards(1), rewards(1)])
    assert rule.decide(IDS[:2], 16, 1, 1).ranks.tolist() == [0.25, 0.25]


def test_a_trait_that_no_prompt_has_is_an_error_not_a_uniform_budget() -> None:
    rule = E3Rank(difficulty="prior")
    rule.describe(IDS, traits())
    rule.observe(IDS, [rewards(1)] * 8)
    with pytest.raises(ValueError, match="difficulty=prior: no prompt seen so far has one"):
        rule.decide(IDS, 64, 1, 1)


PASS_RATES = st.lists(st.integers(0, 8) | st.none(), min_size=1, max_size=16)


def rule_of(solved: Sequence[int | None]) -> tuple[E3Rank, list[str]]:
    """A rule at epoch 2 that saw the prompts whose number of solved rollouts is not None."""
    ids = [f"p{i}" for i in range(len(solved))]
    rule = E3Rank()
    seen = [(x, rewards(c)) for x, c in zip(ids, solved, strict=True) if c is not None]
    rule.observe([x for x, _ in seen], [r for _, r in seen])
    return rule, ids


@settings(deadline=None, max_examples=80)
@given(solved=PASS_RATES, extra=st.integers(0, 64), epoch=st.integers(0, 4))
def test_counts_sum_to_the_total_within_bounds(
    solved: list[int | None], extra: int, epoch: int
) -> None:
    rule, ids = rule_of(solved)
    total = 4 * len(ids) + extra % (8 * len(ids) + 1)
    given_out = counts(rule, ids, total, epoch=epoch)
    n_min, n_max = rule.bounds(total, len(ids), epoch)
    assert sum(given_out) == total
    assert 4 <= n_min <= min(given_out)
    assert max(given_out) <= n_max <= 12


@settings(deadline=None, max_examples=80)
@given(solved=PASS_RATES, data=st.data())
def test_permuting_the_prompts_permutes_the_counts(
    solved: list[int | None], data: st.DataObject
) -> None:
    rule, ids = rule_of(solved)
    shuffled = data.draw(st.permutations(ids))
    straight = dict(zip(ids, counts(rule, ids, 8 * len(ids), epoch=2), strict=True))
    other = dict(zip(shuffled, counts(rule, shuffled, 8 * len(ids), epoch=2), strict=True))
    assert other == straight


@settings(deadline=None, max_examples=80)
@given(solved=PASS_RATES)
def test_harder_prompts_never_get_clearly_less(solved: list[int | None]) -> None:
    rule, ids = rule_of(solved)
    decision = rule.decide(ids, 8 * len(ids), 1, 2)
    given_out = np.array(counts(rule, ids, 8 * len(ids), epoch=2))
    ranks = np.nan_to_num(decision.ranks, nan=0.5)
    harder = ranks[:, None] > ranks[None, :]
    assert (given_out[:, None] - given_out[None, :])[harder].min(initial=0) >= 0


def play(rule: E3Rank, steps: range, batch: int = 4) -> list[tuple[list[int], list[float], Any]]:
    """Train on IDS in a fixed order, two steps an epoch; rewards derive from step and prompt."""
    log = []
    for step in steps:
        ids = IDS[batch * (step % 2) : batch * (step % 2) + batch]
        decision = rule.decide(ids, 8 * batch, step, step // 2)
        assert isinstance(decision.allocation, SingleRound)
        given_out = decision.allocation.counts
        rule.observe(
            ids,
            [
                np.random.default_rng([step, int(x[1:])]).integers(0, 2, n).astype(float)
                for x, n in zip(ids, given_out, strict=True)
            ],
        )
        metrics = decision.allocation.metrics() | rule.metrics()
        log.append((given_out, decision.ranks.tolist(), metrics))
    return log


@pytest.mark.parametrize("cut", [3, 4, 5])
@pytest.mark.parametrize("rank_update", ["epoch", 3])
def test_a_rule_restored_in_the_middle_decides_as_if_never_stopped(
    cut: int, rank_update: Any
) -> None:
    whole = play(E3Rank(rank_update=rank_update), range(10))
    first = E3Rank(rank_update=rank_update)
    play(first, range(cut))
    resumed = E3Rank(rank_update=rank_update)
    resumed.load_state_dict(first.state_dict())
    # NaN is not equal to itself, its text is.
    assert repr(play(resumed, range(cut, 10))) == repr(whole[cut:])


def test_state_is_a_copy_that_later_steps_leave_alone() -> None:
    rule = taught()
    state = rule.state_dict()
    frozen = repr(state)
    rule.decide(IDS, 64, 1, 1)
    rule.observe(IDS, [rewards(8)] * 8)
    assert repr(state) == frozen


def test_state_loads_with_weights_only() -> None:
    torch = pytest.importorskip("torch")
    rule = taught()
    rule.decide(IDS, 64, 1, 1)
    file = io.BytesIO()
    torch.save(rule.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state == rule.state_dict()


def test_unknown_and_missing_state_keys_are_named() -> None:
    state = E3Rank().state_dict()
    del state["ranks"]
    with pytest.raises(ValueError, match=r"unknown keys \['rank'\], missing keys \['ranks'\]"):
        E3Rank().load_state_dict(state | {"rank": {}})


def test_a_plan_reports_bounds_drift_and_rollouts_on_unsolved_prompts() -> None:
    rule = taught()
    assert counts(rule, epoch=1) == [6, 7, 7, 8, 8, 9, 9, 10]
    metrics = rule.decide(IDS, 64, 1, 1).allocation.metrics()
    assert (metrics["n_min"], metrics["n_max"]) == (6, 10)
    assert (metrics["at_min"], metrics["at_max"]) == (1 / 8, 1 / 8)
    assert metrics["unsolved_share"] == 10 / 64  # p7 alone was never solved
    assert math.isnan(metrics["rank_drift"])  # one snapshot only

    rule.observe(IDS, [rewards(0, 56)] * 4 + [rewards(56, 56)] * 4)
    drift = rule.decide(IDS, 64, 2, 2).allocation.metrics()["rank_drift"]
    # Both halves keep their inner order and change places: 1 - 6·Σd²/(8·63), d = 4 for all.
    assert drift == pytest.approx(1 - 6 * 8 * 16 / (8 * 63))


def test_metrics_count_the_prompts_seen() -> None:
    assert E3Rank().metrics() == {"seen": 0}
    assert taught().metrics() == {"seen": 8}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_low": 1}, "n_low=1.*at least 2"),
        ({"n_low": 8, "n_high": 6}, "n_high=6 lies below n_low=8"),
        ({"n_update": -1}, "n_update=-1"),
        ({"rank_update": 0}, "rank_update=0"),
        ({"rank_update": "step"}, "rank_update='step'"),
        ({"mode": "exact"}, "mode='exact'"),
        ({"difficulty": "rank"}, "difficulty='rank'.*prior"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        E3Rank(**arguments)


@pytest.mark.parametrize(("total", "each"), [(24, "3"), (104, "13"), (30, "3.75")])
def test_mean_group_size_outside_the_limits_names_the_numbers(total: int, each: str) -> None:
    with pytest.raises(ValueError, match=f"{total} rollouts for 8 prompts are {each} each"):
        E3Rank().decide(IDS, total, 0, 0)

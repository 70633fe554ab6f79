"""The budget slot: totals, epochs, raw correctness, state, and allocations of several rounds."""

import io
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scripted import (
    SEED,
    Fit,
    ScriptedEngine,
    ScriptedPool,
    StubModule,
    encode,
    problems,
    scored_batch,
    slots,
)

from e3rl.advantages.centred import Centred
from e3rl.batch import RolloutBatch, prompt_columns
from e3rl.budgets.base import NORMS, Budget, Decision, SingleRound
from e3rl.budgets.dynamic_sampling import DynamicSampling
from e3rl.budgets.e3_rank import E3Rank
from e3rl.budgets.metrics import spearman
from e3rl.budgets.neyman import Neyman
from e3rl.budgets.sequential import Sequential as SequentialRounds
from e3rl.budgets.uniform import Uniform
from e3rl.callbacks import budget as budget_file
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.data.loader import PromptLoader, collate
from e3rl.data.problem import Problem
from e3rl.engines.base import RolloutRequest
from e3rl.seeds import derive_seed
from e3rl.temperatures.fixed import Fixed


class Recorded(Uniform):
    """The uniform rule, with all it was asked and told."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int, int]] = []  # total, step, epoch
        self.told: list[tuple[str, list[float]]] = []

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        self.asked.append((total, step, epoch))
        return super().decide(prompt_ids, total, step, epoch)

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        self.told += [(x, r.tolist()) for x, r in zip(prompt_ids, rewards, strict=True)]


class UntilSolved:
    """Two rollouts each; then three more for every prompt without a right one."""

    def __init__(self) -> None:
        self.looks: list[list[float]] = []

    def next(self, batch: RolloutBatch) -> list[int] | None:
        if len(self.looks) == 2:
            return None
        if batch.n_rollouts == 0:
            self.looks.append([])
            return [2] * batch.n_prompts
        sums = torch.zeros(batch.n_prompts)
        right = sums.index_add(0, batch.tensor("group"), batch.tensor("correct")).tolist()
        self.looks.append(right)
        return [0 if solved else 3 for solved in right]

    def metrics(self) -> dict[str, float]:
        return {"looks": float(len(self.looks))}


class Sequential(Recorded):
    def __init__(self) -> None:
        super().__init__()
        self.allocations: list[UntilSolved] = []

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        self.allocations.append(UntilSolved())
        return Decision(self.allocations[-1], np.full(len(prompt_ids), np.nan))


def even_prompts_solve(request: RolloutRequest) -> tuple[str, list[float]]:
    return ("right" if request.prompt == 0 else "wrong"), [-1.0, -2.0]


def test_every_step_spends_its_total_within_bounds_that_widen() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=1)
    fit = Fit(slots(budget=RolloutBudget(rule, 4)), n_prompts=12, per_step=4, epochs=3).fit()
    sizes = [batch.group_sizes for batch in fit.watcher.trained]
    assert [int(size.sum()) for size in sizes] == [16] * 9
    for epoch, (low, high) in enumerate([(4, 4), (3, 5), (2, 6)]):
        for size in sizes[3 * epoch : 3 * epoch + 3]:
            assert low <= int(size.min()) <= int(size.max()) <= high
    assert len({tuple(size.tolist()) for size in sizes}) > 1


def test_the_rule_is_told_step_epoch_and_total() -> None:
    rule = Recorded()
    Fit(slots(budget=RolloutBudget(rule, 5)), n_prompts=4, epochs=3, minibatches=2).fit()
    assert rule.asked == [(10, 0, 0), (10, 1, 0), (10, 2, 1), (10, 3, 1), (10, 4, 2), (10, 5, 2)]


def test_the_rule_learns_raw_correctness_not_shaped_rewards() -> None:
    rule = Recorded()
    halved = RewardScorer(ScriptedPool(), lambda rewards, *_: [x / 2 for x in rewards])  # type: ignore[arg-type]
    fit = Fit(slots(budget=RolloutBudget(rule, 4), reward=halved)).fit()
    batches = fit.watcher.trained
    assert rule.told == [
        (prompt_id, batch.tensor("correct")[batch.tensor("group") == row].tolist())
        for batch in batches
        for row, prompt_id in enumerate(batch.prompt_ids)
    ]
    told = {x for _, rewards in rule.told for x in rewards}
    earned = {float(x) for batch in batches for x in batch.tensor("rewards")}
    assert (told, earned) == ({0.0, 1.0}, {0.0, 0.5})


def test_ranks_and_metrics_of_the_rule_reach_the_batch() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=1)
    fit = Fit(slots(budget=RolloutBudget(rule, 4)), epochs=2).fit()
    first, *_, last = fit.watcher.trained
    assert first.tensor("ranks").isnan().all()
    assert not last.tensor("ranks").isnan().any()
    assert last.metrics["budget/n_min"] == 3
    assert last.metrics["budget/seen"] == 6


def test_weights_at_even_rollouts_reach_the_advantages() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=1, spend="weight")
    fit = Fit(slots(budget=RolloutBudget(rule, 4)), epochs=2).fit()
    seen = [batch.tensor("prompt_weights").tolist() for batch in fit.watcher.trained]
    assert seen[:3] == [[1.0, 1.0]] * 3
    assert {0.75, 1.25} & {weight for pair in seen[3:] for weight in pair}  # 3 and 5 of a mean of 4
    for batch in fit.watcher.trained:
        weights, group = batch.tensor("prompt_weights"), batch.tensor("group")
        assert weights.mean() == 1
        assert batch.group_sizes.tolist() == [4, 4]
        plain = Centred()(batch.tensor("rewards"), group, 2)
        assert torch.equal(batch.tensor("advantages"), plain * weights[group])


def test_a_prompt_keeps_its_weight_on_whatever_rank_it_is_sampled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = ["p0", "p1", "q0", "q1", "q2"]
    rules = [E3Rank(n_low=2, n_high=6, n_update=2, spend="weight") for _ in range(3)]
    for rule in rules:
        rule.observe(ids, [np.array([x]) for x in (1.0, 0.0, 1.0, 0.0, 0.0)])
    wanted = rules[2].decide(ids, 20, 3, 1).weights
    assert wanted is not None
    batches = [unsampled("p0", "p1", "q0"), unsampled("q1", "q2")]
    decided_by_ranks([RolloutBudget(rule, 4) for rule in rules[:2]], batches, monkeypatch)
    found = {
        prompt_id: weight
        for batch in batches
        for prompt_id, weight in zip(
            batch.prompt_ids, batch.tensor("prompt_weights").tolist(), strict=True
        )
    }
    assert found == pytest.approx(dict(zip(ids, wanted.tolist(), strict=True)))


def test_state_round_trip_decides_the_same() -> None:
    slot = RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=2), 4)
    batch = scored_batch([[(1.0, [-1.0])] * 4, [(0.0, [-1.0])] * 4, [(0.0, [-1.0])] * 3])
    slot.on_train_batch_end(None, None, None, batch, 0)  # type: ignore[arg-type]
    slot.strategy.decide(batch.prompt_ids, 12, 1, 1)  # takes a snapshot of the ranks
    file = io.BytesIO()
    torch.save(slot.state_dict(), file)
    file.seek(0)
    other = RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=2), 4)
    other.load_state_dict(torch.load(file, weights_only=True))
    ids = [*batch.prompt_ids, "new"]
    allocations = [x.strategy.decide(ids, 16, 2, 1).allocation for x in (slot, other)]
    counts = [allocation.next(batch) for allocation in allocations]
    assert counts[0] == counts[1]
    # Ranks 0, 1/2, 1/2 and the middle for the unseen one; the tie is drawn.
    assert counts[0][0] == 2
    assert sorted(counts[0][1:]) == [4, 5, 5]


def test_a_plan_may_sample_look_and_sample_more() -> None:
    rule = Sequential()
    engine = ScriptedEngine(script=even_prompts_solve)
    stack = slots(
        budget=RolloutBudget(rule, 2),
        reward=RewardScorer(ScriptedPool()),  # type: ignore[arg-type]
        rollout=RolloutSampler(engine, 3, SEED),
    )
    fit = Fit(stack, n_prompts=2, per_step=2).fit()
    (batch,) = fit.watcher.trained
    assert rule.allocations[0].looks == [[], [2.0, 0.0]]
    assert batch.metrics["budget/looks"] == 2  # asked when there is no further round
    assert batch.rounds == 2
    assert batch.group_sizes.tolist() == [2, 5]
    assert batch.tensor("group").tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert batch.tensor("sample").tolist() == [0, 1, 0, 1, 2, 3, 4]
    assert batch.tensor("correct").tolist() == [1, 1, 0, 0, 0, 0, 0]
    unsolved = batch.prompt_ids[1]
    assert [r.seed for r in engine.requests[4:]] == [
        derive_seed(SEED, "train", 0, unsolved, j) for j in (2, 3, 4)
    ]
    assert rule.told == [(batch.prompt_ids[0], [1.0, 1.0]), (unsolved, [0.0] * 5)]
    # Pooled over both rounds: the singleton look of a later round is no group of its own.
    assert batch.tensor("advantages").tolist() == [0.0] * 7


def test_a_prompt_that_the_plan_leaves_out_stays_unseen() -> None:
    class Skipping(E3Rank):
        def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
            return Decision(SingleRound([0, total]), np.full(2, np.nan))

    fit = Fit(slots(budget=RolloutBudget(Skipping(), 4)), n_prompts=2, per_step=2).fit()
    (batch,) = fit.watcher.trained
    state = fit.stack["budget"].state_dict()
    assert batch.group_sizes.tolist() == [0, 8]
    assert list(state["strategy"]["history"]["rollouts"]) == [batch.prompt_ids[1]]
    assert state["lengths"]["rollouts"] == {batch.prompt_ids[1]: 8.0}


def unsampled(*names: str) -> RolloutBatch:
    return collate([Problem(x, f"{x}?", f"{x}!", source="s") for x in names], encode, ("train", 3))


def decided_by_ranks(
    slots_of_ranks: Sequence[RolloutBudget],
    batches: Sequence[RolloutBatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let every rank decide step 3 in epoch 1, one after the other in this process."""
    columns = [prompt_columns(batch) for batch in batches]
    trainer: Any = type("T", (), {"num_training_batches": 2, "fit_loop": type("L", (), {})})
    trainer.fit_loop.total_batch_idx = 3
    monkeypatch.setattr(budget_file, "all_gather", lambda _: columns)
    for own, (slot, batch) in enumerate(zip(slots_of_ranks, batches, strict=True)):
        monkeypatch.setattr(budget_file, "rank", lambda own=own: own)
        slot.on_train_batch_start(trainer, None, batch, 0)  # type: ignore[arg-type]


def test_ranks_decide_over_all_prompts_and_share_them_by_expected_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = ["p0", "p1", "q0", "q1", "q2"]
    stacks = [RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=2), 4) for _ in range(2)]
    for slot in stacks:
        slot.strategy.observe(ids, [np.array([x]) for x in (1.0, 0.0, 1.0, 0.0, 0.0)])
        slot.lengths.observe(ids, [[8], [98], [18], [38], [58]])  # with the prompt 10, 100 ...
    expected = stacks[0].strategy.decide(ids, 20, 3, 1)
    assert isinstance(expected.allocation, SingleRound)
    batches = [unsampled("p0", "p1", "q0"), unsampled("q1", "q2")]
    before = list(batches)
    decided_by_ranks(stacks, batches, monkeypatch)
    assert all(one is other for one, other in zip(before, batches, strict=True))
    assert sorted(x for batch in batches for x in batch.prompt_ids) == ids
    assert [p for batch in batches for p in batch.prompt_ids] != ids
    tokens = dict(zip(ids, (10, 100, 20, 40, 60), strict=True))
    shares = []
    for batch in batches:
        assert isinstance(batch.allocation, SingleRound)
        rows = [ids.index(x) for x in batch.prompt_ids]
        assert rows == sorted(rows)
        assert batch.answers == [f"{x}!" for x in batch.prompt_ids]
        assert batch.allocation.counts == [expected.allocation.counts[row] for row in rows]
        # Of the prompts of all ranks; NaN is not equal to itself, its text is.
        assert repr(batch.allocation.metrics()) == repr(expected.allocation.metrics())
        assert batch.tensor("ranks").tolist() == expected.ranks[rows].tolist()
        shares.append(
            sum(
                n * tokens[x]
                for n, x in zip(batch.allocation.counts, batch.prompt_ids, strict=True)
            )
        )
    reported = {batch.metrics["budget/rank_imbalance"] for batch in batches}
    assert reported == {max(shares) / (sum(shares) / 2)}
    # 4 or 5 rollouts each: 100 stands against 60, 40, 20 and 10, or nearly so.
    assert max(shares) / sum(shares) < 0.55


def test_rollouts_do_not_depend_on_the_rank_that_samples_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def requests_of(shards: Sequence[RolloutBatch]) -> dict[tuple[str, int], tuple[Any, ...]]:
        sampler = RolloutSampler(ScriptedEngine(), 3, SEED)
        found = {}
        for batch in shards:
            batch.stream = (SEED, *batch.stream)
            batch.temperature_of = lambda rows, samples: [1.0] * len(rows)
            assert batch.allocation is not None
            for r in sampler._requests(batch, list(batch.allocation.next(batch) or [])):
                key = batch.prompt_ids[r.prompt], r.sample
                found[key] = (r.seed, r.prompt_tokens, r.temperature)
        return found

    one = [unsampled("a", "b", "c", "d")]
    two = [unsampled("a", "c"), unsampled("b", "d")]
    for shards in (one, two):
        stacks = [RolloutBudget(Uniform(), 4) for _ in shards]
        for slot in stacks:
            slot.lengths.observe(["a", "b", "c", "d"], [[99], [9], [99], [9]])
        decided_by_ranks(stacks, shards, monkeypatch)
    assert two[0].prompt_ids != ["a", "c"]
    expected = requests_of(one)
    assert len(expected) == 16
    assert requests_of(two) == expected


def test_all_ranks_learn_the_same_from_all_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [
        scored_batch([[(1.0, [-1.0] * 3)], [(0.0, [-1.0]), (1.0, [-1.0] * 2)]]),
        scored_batch([[(0.0, [-1.0] * 4)]]),
    ]
    batches[1].prompt_ids = ["q"]
    sent: list[Any] = []
    monkeypatch.setattr(budget_file, "all_gather", lambda item: sent.append(item) or [item])
    for batch in batches:
        RolloutBudget(Recorded(), 4).on_train_batch_end(None, None, None, batch, 0)  # type: ignore[arg-type]
    monkeypatch.setattr(budget_file, "all_gather", lambda _: sent)
    rule = Recorded()
    slot = RolloutBudget(rule, 4)
    slot.on_train_batch_end(None, None, None, batches[0], 0)  # type: ignore[arg-type]
    assert rule.told == [("p0", [1.0]), ("p1", [0.0, 1.0]), ("q", [0.0])]
    assert slot.lengths.expect(["p0", "p1", "q"]).tolist() == [3.0, 1.5, 4.0]
    # Prompts have 2 tokens: 5 + 3 + 4 on one rank, 6 on the other.
    assert batches[0].metrics["rollout/rank_imbalance"] == pytest.approx(12 / 9)


def test_one_rank_keeps_its_prompts_and_reports_no_imbalance() -> None:
    fit = Fit(slots(budget=RolloutBudget(Uniform(), 4))).fit()
    fresh = PromptLoader(problems(fit.n_prompts), encode, fit.per_step, SEED)
    for batch, loaded in zip(fit.watcher.trained, fresh, strict=True):
        assert batch.prompt_ids == loaded.prompt_ids
        assert not [name for name in batch.metrics if "imbalance" in name]


def test_rounds_that_look_at_all_prompts_are_refused_on_several_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ValueError, match=r"UntilSolved .* 2 ranks .* trainer.devices=1"):
        decided_by_ranks(
            [RolloutBudget(Sequential(), 2)] * 2, [unsampled("a"), unsampled("b")], monkeypatch
        )


def test_a_budget_that_leaves_a_rank_without_rollouts_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Single(Uniform):
        def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
            return Decision(SingleRound([total, 0]), np.full(2, np.nan))

    with pytest.raises(ValueError, match="rollouts to 1 prompts, which leaves some of 2 ranks"):
        decided_by_ranks(
            [RolloutBudget(Single(), 2)] * 2, [unsampled("a"), unsampled("b")], monkeypatch
        )


def test_a_group_size_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="rollouts_per_prompt=0"):
        RolloutBudget(Uniform(), 0)


def even_rows_solve(request: RolloutRequest) -> tuple[str, list[float]]:
    return ("right" if request.prompt % 2 == 0 else "wrong"), [-1.0]


def test_rounds_of_a_real_rule_are_sampled_scored_trained_on_and_reported() -> None:
    stack = slots(
        budget=RolloutBudget(SequentialRounds("positive", per_round=2, max_rounds=4), 4),
        rollout=RolloutSampler(ScriptedEngine(script=even_rows_solve), 3, SEED),
    )
    fit = Fit(stack, n_prompts=4, per_step=4).fit()
    (batch,) = fit.watcher.trained
    # 16 may be spent: 8 in the first round, then 2 each for the wrong ones, twice.
    assert batch.group_sizes.tolist() == [2, 6, 2, 6]
    assert batch.rounds == 3
    metrics = ("cap", "spent_share", "rounds", "unresolved", "first_accuracy")
    found = {name: batch.metrics[f"budget/{name}"] for name in metrics}
    assert found == {
        "cap": 16.0,
        "spent_share": 1.0,
        "rounds": 3.0,
        "unresolved": 0.5,
        "first_accuracy": 0.5,
    }


def test_candidates_that_dynamic_sampling_does_not_reach_have_no_rollouts() -> None:
    stack = slots(
        budget=RolloutBudget(DynamicSampling(wanted_share=0.25), 4),
        rollout=RolloutSampler(ScriptedEngine(), 3, SEED),
    )
    fit = Fit(stack, n_prompts=8, per_step=8).fit()
    (batch,) = fit.watcher.trained
    sizes, right = batch.tally()
    assert set(sizes.tolist()) == {0, 4}
    assert ((right > 0) & (right < sizes)).sum() == 2
    assert batch.metrics["budget/reached"] == (sizes > 0).mean()


def reached_in_steps(leftovers: Any) -> list[tuple[list[str], list[str]]]:
    """Candidates of each of 15 steps of 4, and those of them that were sampled."""
    rule = DynamicSampling(wanted_share=0.25, max_rounds=1, leftovers=leftovers)
    stack = slots(budget=RolloutBudget(rule, 4), rollout=RolloutSampler(ScriptedEngine(), 3, SEED))
    batches = Fit(stack, n_prompts=20, per_step=4, epochs=3).fit().watcher.trained
    return [
        (b.prompt_ids, [x for x, n in zip(b.prompt_ids, b.group_sizes.tolist(), strict=True) if n])
        for b in batches
    ]


def test_candidates_that_were_not_reached_come_first_in_the_next_step() -> None:
    steps = reached_in_steps("requeue")
    assert [len(sampled) for _, sampled in steps] == [1] * 15  # epochs keep their 5 steps
    for (candidates, sampled), (following, _) in pairwise(steps):
        assert following[:3] == [x for x in candidates if x not in sampled]
    # Three epochs are less than a pass over the 20 prompts.
    assert len({x for _, sampled in steps for x in sampled}) == 15


def test_they_wait_for_the_next_pass_if_that_is_wanted() -> None:
    fresh = PromptLoader(problems(20), encode, 4, SEED)
    expected = [batch.prompt_ids for _ in range(3) for batch in fresh]
    assert [candidates for candidates, _ in reached_in_steps("next_pass")] == expected


def test_traits_of_a_batch_are_means_by_prompt() -> None:
    batch = scored_batch(
        [[(1.0, [-1.0, -2.0]), (0.0, [-3.0])], [], [(1.0, [-0.5, -0.5, -0.5, -0.5])]]
    )
    batch.priors = [0.25, 0.5, None]
    batch.given_answers = ["4", "5", "4"]
    found = {name: x.tolist() for name, x in budget_file.traits(batch).items()}
    assert found["prior"][:2] == [0.25, 0.5]
    assert found["length"][::2] == [1.5, 4]
    assert found["entropy"][::2] == [2, 0.5]
    assert found["disagreement"][0] == 1
    unknown = (found["prior"][2], found["length"][1], found["entropy"][1])
    assert all(np.isnan(x) for x in (*unknown, *found["disagreement"][1:]))


def test_traits_count_a_rollout_that_goes_on_for_those_that_were_stopped() -> None:
    batch = scored_batch([[(1.0, [-1.0, -2.0]), (0.0, [-3.0])], [(0.0, [-1.0])]])
    batch.weights = torch.tensor([3.0, 1.0, 0.0])
    found = {name: x.tolist() for name, x in budget_file.traits(batch).items()}
    assert found["length"][0] == (3 * 2 + 1) / 4
    assert found["entropy"][0] == pytest.approx((3 * 3 + 3) / (3 * 2 + 1))
    assert np.isnan(found["length"][1])


def test_disagreement_is_the_share_of_pairs_with_different_answers() -> None:
    sizes = (4, 4, 4, 3, 2, 1)
    batch = scored_batch([[(1.0, [-1.0])] * n for n in sizes])
    given: list[list[str | None]] = [
        ["7", "7", "7", "7"],
        ["7", "7", "8", "9"],  # 1 of 6 pairs is alike
        ["7", "7", "8", "8"],  # 2 of 6
        ["7", "7", None],  # 1 of 3
        [None, None],  # what has no answer agrees with nothing
        ["7"],
    ]
    batch.given_answers = [answer for group in given for answer in group]
    found = budget_file.traits(batch)["disagreement"].tolist()
    assert found[:5] == pytest.approx([0, 5 / 6, 4 / 6, 2 / 3, 1])
    assert np.isnan(found[5])


def test_a_rule_may_rank_by_the_disagreement_of_final_answers() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=2, difficulty="disagreement")

    def undecided(request: RolloutRequest) -> tuple[str, list[float]]:
        return f"answer {request.sample % (1 + request.prompt)}", [-1.0]

    stack = slots(
        budget=RolloutBudget(rule, 4),
        rollout=RolloutSampler(ScriptedEngine(script=undecided), 9, SEED),
    )
    fit = Fit(stack, n_prompts=4, per_step=4, epochs=2).fit()
    first, second = fit.watcher.trained
    # Of 4 answers: all alike, 2 and 2, 2 and 1 and 1, all different; no gold answer is met.
    assert first.tensor("correct").sum() == 0
    order = {x: row for row, x in enumerate(first.prompt_ids)}
    ranks = dict(zip(second.prompt_ids, second.tensor("ranks").tolist(), strict=True))
    assert ranks == {x: row / 4 for x, row in order.items()}


def test_gradient_norms_of_a_batch_are_moments_by_prompt_and_outcome() -> None:
    one = [-1.0]
    batch = scored_batch([[(1.0, one), (0.0, one), (1.0, one)], [(0.0, one)], []])
    assert all(np.isnan(x).all() for name, x in budget_file.traits(batch).items() if name in NORMS)
    batch.grad_norms = torch.tensor([1.0, 4.0, 3.0, 2.0])
    found = budget_file.traits(batch)
    assert [found[name][0] for name in NORMS] == [2, 5, 4, 16]
    assert [found[name][1] for name in NORMS[2:]] == [2, 4]
    assert np.isnan([found[name][1] for name in NORMS[:2]]).all()
    assert np.isnan([found[name][2] for name in NORMS]).all()


class MeasuringModule(StubModule):
    """Measures 1 of prompt p0 and 3 of the others, where asked."""

    def training_step(self, batch: RolloutBatch, batch_idx: int) -> None:
        super().training_step(batch, batch_idx)
        if batch.wants_grad_norms:
            norm = torch.tensor([1.0 if x == "p0" else 3.0 for x in batch.prompt_ids])
            batch.grad_norms = norm[batch.tensor("group")]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_rule_that_weighs_by_gradient_norms_has_them_measured(lookahead: int) -> None:
    def half(request: RolloutRequest) -> tuple[str, list[float]]:
        return ("right" if request.sample % 2 else "wrong"), [-1.0]

    def sizes(rule: Budget) -> dict[str, int]:
        engine = ScriptedEngine(script=half)
        stack = slots(
            budget=RolloutBudget(rule, 16),
            temperature=TemperatureScheduler(Fixed(), lookahead),
            rollout=RolloutSampler(engine, 9, SEED),
        )
        fit = Fit(stack, n_prompts=2, per_step=2, epochs=3, lookahead=lookahead)
        fit.module = MeasuringModule()
        last = fit.fit().watcher.trained[-1]
        assert (last.grad_norms is None) == isinstance(rule, Uniform)
        return dict(zip(last.prompt_ids, last.group_sizes.tolist(), strict=True))

    assert sizes(Neyman("cures")) == {"p0": 8, "p1": 24}
    assert sizes(Uniform()) == {"p0": 16, "p1": 16}


def test_a_rule_may_rank_by_the_length_of_completions() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=2, difficulty="length")

    def longer(request: RolloutRequest) -> tuple[str, list[float]]:
        return "wrong", [-1.0] * (1 + request.prompt)

    stack = slots(
        budget=RolloutBudget(rule, 4),
        rollout=RolloutSampler(ScriptedEngine(script=longer), 9, SEED),
    )
    fit = Fit(stack, n_prompts=4, per_step=4, epochs=2).fit()
    first, second = fit.watcher.trained
    assert np.isnan(first.metrics["budget/length_correlation"])  # of a uniform budget
    sizes = second.group_sizes.tolist()
    assert second.metrics["budget/length_correlation"] == pytest.approx(
        spearman(sizes, range(1, 5))
    )
    lengths = dict(zip(first.prompt_ids, range(1, 5), strict=True))
    assert {x: lengths[x] for x in second.prompt_ids} == {
        x: 1 + round(4 * rank)
        for x, rank in zip(second.prompt_ids, second.tensor("ranks").tolist(), strict=True)
    }

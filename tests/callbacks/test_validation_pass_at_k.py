"""The pass@k slot: counts, metrics, seeds, and what validation leaves alone."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted import SEED, Fit, ScriptedEngine, ScriptedPool, scored_batch, slots

from e3rl.budgets.e3_rank import E3Rank
from e3rl.callbacks import pass_at_k as pass_at_k_file
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.pass_at_k import (
    EvaluationCounts,
    PassAtK,
    ProblemTally,
    entropy_error,
    merge_tallies,
    metrics,
    scatter,
    tally_segment,
)
from e3rl.callbacks.reward import RewardScorer
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.callbacks.validation_schedule import Evaluation, Segment
from e3rl.engines.base import RolloutRequest
from e3rl.ledger.ledger import read_rows
from e3rl.seeds import derive_seed
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.gains import PaperGain


def counts(n: list[int], correct: list[int], **changed: Any) -> EvaluationCounts:
    ids = [f"v{i}" for i in range(len(n))]
    sources = ["even" if i % 2 == 0 else "odd" for i in range(len(n))]
    rest = {"entropy_sum": 6.0, "tokens": 24, "truncated": 3}
    return EvaluationCounts("t1", 1.0, ids, sources, n, correct, **(rest | changed))


def sampling(evaluations: list[Evaluation], engine: ScriptedEngine, **more: Any) -> dict[str, Any]:
    return slots(
        pass_at_k=PassAtK(evaluations, ks=[1, 2, 4]),
        rollout=RolloutSampler(engine, 3, more.pop("seed", SEED)),
        reward=RewardScorer(ScriptedPool()),  # type: ignore[arg-type]
        **more,
    )


def results(fit: Fit) -> dict[str, EvaluationCounts]:
    slot = fit.stack["pass_at_k"]
    assert isinstance(slot, PassAtK)
    return {result.name: result for result in slot.results}


def test_known_counts_give_known_metrics() -> None:
    row = metrics(counts([4, 4, 4], [0, 1, 4]), ks=[1, 2, 4, 8])
    assert row["val/t1/pass@1"] == pytest.approx((0 + 1 / 4 + 1) / 3)
    assert row["val/t1/pass@2"] == pytest.approx((0 + 1 / 2 + 1) / 3)
    assert row["val/t1/pass@4"] == pytest.approx(2 / 3)
    assert row["val/t1/mean@4"] == pytest.approx(5 / 12)
    assert not any("pass@8" in name for name in row)
    assert row["val/t1/source/even/pass@1"] == pytest.approx(1 / 2)
    assert row["val/t1/source/odd/pass@1"] == pytest.approx(1 / 4)
    assert row["val/t1/entropy"] == pytest.approx(6 / 24)
    assert row["val/t1/length"] == pytest.approx(24 / 12)
    assert row["val/t1/truncated"] == pytest.approx(3 / 12)
    assert row["val/t1/temperature"] == 1.0


def test_intervals_contain_the_mean_and_shrink_with_more_problems() -> None:
    rng = np.random.default_rng(0)
    widths = []
    for size in (10, 200):
        right = rng.integers(0, 9, size=size).tolist()
        row = metrics(counts([8] * size, right), ks=[1, 4])
        for k in (1, 4):
            name = f"val/t1/pass@{k}"
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        widths.append(row["val/t1/pass@1_high"] - row["val/t1/pass@1_low"])
    assert widths[1] < widths[0] / 3


def test_ragged_counts_keep_to_what_every_problem_has() -> None:
    row = metrics(counts([4, 2], [1, 1]), ks=[1, 2, 4])
    assert row["val/t1/pass@2"] == pytest.approx((1 / 2 + 1) / 2)
    assert "val/t1/pass@4" not in row
    assert row["val/t1/mean@2"] == pytest.approx((1 / 4 + 1 / 2) / 2)


def test_a_tally_counts_the_rollouts_of_its_segment_only() -> None:
    batch = scored_batch(
        [
            [(1.0, [-9.0]), (1.0, [-1.0] * 2), (0.0, [-2.0] * 9)],
            [(1.0, [-9.0]), (0.0, [-4.0]), (0.0, [-1.0])],
        ]
    )
    first, second = tally_segment(batch, Segment("x", start=1, n=2, temperature=0.7))
    assert (first.problem_id, first.source, first.name) == ("p0", "even", "x")
    assert (first.n, first.correct, first.tokens, first.truncated) == (2, 1, 11, 1)
    assert first.entropy_sum == pytest.approx(2 + 18)
    assert (second.correct, second.tokens, second.truncated) == (0, 2, 0)
    assert second.entropy_sum == pytest.approx(5)


def test_a_greedy_sampler_has_no_entropy() -> None:
    batch = scored_batch([[(1.0, [-0.3, -0.2])]])
    (greedy,) = tally_segment(batch, Segment("greedy", 0, 1, temperature=0.0))
    assert (greedy.entropy_sum, greedy.tokens) == (0.0, 2)


def test_problems_that_ranks_share_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(right: float) -> list[list[tuple[float, list[float]]]]:
        return [[(right, [-1.0, -1.0])] * 4] * 2

    segment = Segment("t1", 0, 4, 1.0)
    first = tally_segment(scored_batch(groups(1.0)), segment)  # p0, p1
    copies = tally_segment(scored_batch(groups(1.0)), segment)[
        :1
    ]  # p0 again, to fill the other rank
    both = merge_tallies([*first, *copies])
    assert both.problem_id == ["p0", "p1"]
    assert (both.n, both.correct) == ([4, 4], [4, 4])
    assert (both.tokens, both.entropy_sum, both.truncated) == (16, 16.0, 0)
    assert metrics(both, [1])["val/t1/length"] == 2.0

    slot = PassAtK([Evaluation("t1", n=4, temperature=1.0)], ks=[1])
    slot._collected = first
    monkeypatch.setattr(pass_at_k_file, "all_gather", lambda own: [own, copies])
    trainer: Any = type("T", (), {"sanity_checking": True})
    slot.on_validation_epoch_end(trainer, None)  # type: ignore[arg-type]
    assert slot.results == [both]


def test_validation_alone_truncates(tmp_path: Path) -> None:
    evaluations = [
        Evaluation("t1", n=1, temperature=1.0),
        Evaluation("nucleus", n=2, temperature=0.8, top_p=0.9, top_k=20),
    ]
    engine = ScriptedEngine()
    fit = Fit(sampling(evaluations, engine), folder=tmp_path, validate_every=3).validate().fit()
    validated = [r for r in engine.requests if r.prompt_tokens and r.temperature == 0.8]
    assert {(r.top_p, r.top_k) for r in validated} == {(0.9, 20)}
    others = [r for r in engine.requests if r.temperature == 1.0]
    assert {(r.top_p, r.top_k) for r in others} == {(1.0, 0)}
    assert results(fit)["nucleus"].n == [2] * 3
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [(row["top_p"], row["top_k"]) for row in rows] == [(1.0, 0), (0.9, 20)] * 2


def test_every_evaluation_is_counted_and_named(tmp_path: Path) -> None:
    evaluations = [
        Evaluation("t1", n=4, temperature=1.0),
        Evaluation("greedy", n=1, temperature=0.0),
    ]
    fit = Fit(sampling(evaluations, ScriptedEngine()), folder=tmp_path).validate()
    found = results(fit)
    assert list(found) == ["t1", "greedy"]
    assert found["t1"].problem_id == found["greedy"].problem_id == ["v0", "v1", "v2"]
    assert (found["t1"].n, found["greedy"].n) == ([4] * 3, [1] * 3)
    by_hand = [
        sum(derive_seed(fit.stack["pass_at_k"].seed, "validation", x, j) % 2 for j in range(4))  # type: ignore[attr-defined]
        for x in ("v0", "v1", "v2")
    ]
    assert found["t1"].correct == by_hand
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [(row["name"], row["rollout_step"], row["n"]) for row in rows] == [
        ("t1", 0, [4] * 3),
        ("greedy", 0, [1] * 3),
    ]
    (metric_row,) = read_rows(tmp_path / "metrics.jsonl")
    assert (metric_row["kind"], metric_row["rollout_step"]) == ("validation", 0)
    assert metric_row["val/t1/mean@4"] == pytest.approx(sum(by_hand) / 12)
    assert "val/greedy/pass@1" in metric_row
    assert "val/greedy/pass@2" not in metric_row


def test_what_is_sampled_once_is_counted_for_both_and_says_so(tmp_path: Path) -> None:
    evaluations = [Evaluation("t1", n=4, temperature=1.0), Evaluation("live", n=4)]
    engine = ScriptedEngine()
    found = results(Fit(sampling(evaluations, engine), folder=tmp_path).validate())
    assert len(engine.requests) == 3 * 4
    assert found["live"] == replace(found["t1"], name="live", shared_with="t1")
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [row.get("shared_with") for row in rows] == [None, "t1"]


def test_an_entropy_is_not_looked_for_in_a_validation() -> None:
    with pytest.raises(ValueError, match=r"\['matched'\] ask for an entropy"):
        PassAtK([Evaluation("matched", n=4, entropy=0.8)], ks=[1])


def test_a_single_rollout_says_nothing_of_the_noise_of_entropy() -> None:
    engine = ScriptedEngine(lambda r: ("right", [-0.5] * 2))
    found = results(Fit(sampling([Evaluation("t1", n=1, temperature=1.0)], engine)).validate())
    assert found["t1"].entropy_error is None


def test_the_noise_of_entropy_is_that_of_draws() -> None:
    """The delta method against 1,500 draws of what two problems give."""
    rng = np.random.default_rng(3)
    means, n = np.array([[2.0, 5.0], [1.0, 3.0]]), 6  # surprisal and length of a problem's rollouts

    def draw() -> tuple[float, list[ProblemTally]]:
        tallies = []
        for problem, (surprisal, length) in enumerate(means):
            lengths = rng.poisson(length, n) + 1
            sums = rng.gamma(4, surprisal / 4, n) + 0.1 * lengths
            group = torch.zeros(n, dtype=torch.long)
            (spread,) = scatter(torch.tensor(sums), torch.tensor(lengths), group, 1)
            tallies.append(
                ProblemTally(
                    "t1", 1.0, str(problem), "", n, 0, sums.sum(), int(lengths.sum()), 0,
                    scatter=spread,
                )
            )  # fmt: skip
        return sum(t.entropy_sum for t in tallies) / sum(t.tokens for t in tallies), tallies

    drawn = [draw() for _ in range(1500)]
    told = np.sqrt(np.mean([(entropy_error(tallies) or 0) ** 2 for _, tallies in drawn]))
    assert told == pytest.approx(np.std([entropy for entropy, _ in drawn]), rel=0.08)


def test_validation_seeds_know_neither_run_seed_nor_step() -> None:
    drawn = []
    for seed in (1, 2):
        engine = ScriptedEngine()
        evaluations = [Evaluation("t1", n=4, temperature=1.0)]
        fit = Fit(sampling(evaluations, engine, seed=seed), validate_every=1)
        fit.validate()
        baseline = [(r.prompt_tokens, r.sample, r.seed) for r in engine.requests]
        engine.requests.clear()
        fit.fit()
        every = [(r.prompt_tokens, r.sample, r.seed) for r in engine.requests]
        training = 2 * 4
        for step in range(3):
            start = step * (training + len(baseline)) + training
            assert every[start : start + len(baseline)] == baseline
        drawn.append(baseline)
    assert drawn[0] == drawn[1]


def test_validation_leaves_the_strategies_of_training_alone() -> None:
    class Frozen(PassAtK):
        """Compares the states before and after each validation."""

        def states(self, trainer: Any) -> Any:
            names = {"e3rl/budget", "e3rl/temperature", "e3rl/rollout", "e3rl/reward"}
            found = [c for c in trainer.callbacks if c.state_key in names]
            assert len(found) == 4
            return copy.deepcopy([c.state_dict() for c in found])

        def on_validation_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.before = self.states(trainer)
            super().on_validation_epoch_start(trainer, pl_module)

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            super().on_validation_epoch_end(trainer, pl_module)
            assert self.states(trainer) == self.before
            self.checked = getattr(self, "checked", 0) + 1

    slot = Frozen([Evaluation("live", n=2), Evaluation("hot", n=2, temperature=1.4)], ks=[1])
    stack = slots(
        budget=RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=1), 4),
        temperature=TemperatureScheduler(EntropyTarget(PaperGain(34), init_steps=1)),
        pass_at_k=slot,
    )
    Fit(stack, validate_every=1, epochs=2).validate().fit()
    assert slot.checked == 7


def test_training_is_the_same_with_and_without_validation() -> None:
    def trained(every: int | None) -> list[list[int]]:
        stack = slots(
            budget=RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=1), 4),
            temperature=TemperatureScheduler(EntropyTarget(PaperGain(34), init_steps=1)),
        )
        fit = Fit(stack, validate_every=every, epochs=2)
        if every:
            fit.validate()
        fit.fit()
        return [
            [*b.group_sizes.tolist(), *b.tensor("temperatures").tolist()]  # type: ignore[list-item]
            for b in fit.watcher.trained
        ]

    assert trained(1) == trained(None)


def test_what_is_left_to_the_last_validation_appears_only_there(tmp_path: Path) -> None:
    evaluations = [
        Evaluation("t1", n=2, temperature=1.0),
        Evaluation("live", n=2, last_only=True),
    ]
    fit = Fit(sampling(evaluations, ScriptedEngine()), tmp_path, validate_every=1, epochs=2)
    fit.validate().fit()
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [(row["rollout_step"], row["name"]) for row in rows] == [
        *((step, "t1") for step in range(7)),
        (6, "live"),
    ]


def test_the_last_validation_may_sample_more(tmp_path: Path) -> None:
    often = Evaluation("t1", n=2, last_n=8, temperature=1.0)
    stack = slots(pass_at_k=PassAtK([often], ks=[1, 2, 4, 8]))
    fit = Fit(stack, tmp_path, epochs=2, validate_every=3)
    fit.validate().fit()
    rows = read_rows(tmp_path / "validation.jsonl")
    assert [(row["rollout_step"], set(row["n"])) for row in rows] == [(0, {2}), (3, {2}), (6, {8})]
    metrics_rows = [r for r in read_rows(tmp_path / "metrics.jsonl") if r["kind"] == "validation"]
    assert ["val/t1/pass@8" in row for row in metrics_rows] == [False, False, True]


def test_a_validation_without_evaluations_writes_no_row(tmp_path: Path) -> None:
    evaluations = [Evaluation("live", n=2, last_only=True)]
    stack = sampling(evaluations, ScriptedEngine(), metrics=None)
    Fit(stack, tmp_path, validate_every=1).validate().fit()
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [(row["kind"], row["rollout_step"]) for row in rows] == [("validation", 3)]


def test_a_sanity_check_writes_no_row(tmp_path: Path) -> None:
    evaluations = [Evaluation("t1", n=2, temperature=1.0)]
    options = {"num_sanity_val_steps": 1}
    stack = sampling(evaluations, ScriptedEngine(), metrics=None)
    Fit(stack, tmp_path, validate_every=3, options=options).fit()
    assert [row["rollout_step"] for row in read_rows(tmp_path / "validation.jsonl")] == [3]


def test_rows_of_validation_hold_what_the_analysis_reads(tmp_path: Path) -> None:
    Fit(slots(), tmp_path, validate_every=3).validate().fit()
    first, last = read_rows(tmp_path / "validation.jsonl")
    assert (first["rollout_step"], last["rollout_step"]) == (0, 3)
    assert set(first) == {
        *("rollout_step", "name", "temperature", "problem_id", "source", "n", "correct"),
        *("entropy_sum", "tokens", "truncated", "top_p", "top_k", "no_answer", "entropy_error"),
    }
    assert math.isfinite(first["entropy_sum"])


@pytest.mark.parametrize(
    ("evaluations", "ks", "message"),
    [
        ([], [1], "give one or more"),
        (["a", "a"], [1], "each its own name"),
        (["a"], [0], "at least 1"),
        (["a"], [], "give one or more"),
    ],
)
def test_wrong_settings_are_named(evaluations: list[str], ks: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PassAtK([Evaluation(name) for name in evaluations], ks)


def test_rollouts_of_validation_are_not_kept_for_a_gradient() -> None:
    fit = Fit(slots(), validate_every=3).validate()
    assert all(not b.tensor("sampler_logprobs").requires_grad for b in fit.watcher.validated)
    assert torch.is_grad_enabled()


def test_requests_of_one_evaluation_have_its_temperature() -> None:
    engine = ScriptedEngine()
    evaluations = [Evaluation("t1", n=2, temperature=1.0), Evaluation("cold", 3, temperature=0.4)]
    Fit(sampling(evaluations, engine)).validate()

    def expected(request: RolloutRequest) -> float:
        return 1.0 if request.sample < 2 else 0.4

    assert len(engine.requests) == 3 * 5
    assert all(request.temperature == expected(request) for request in engine.requests)


def test_rewards_between_0_and_1_are_told_by_their_mean_and_by_the_largest_of_k() -> None:
    whole = metrics(counts([2, 2], [1, 0]), ks=[1, 2])
    assert not any("max@" in name or name.endswith("reward") for name in whole)
    row = metrics(counts([2, 2], [1, 0], rewards=[[1.0, 0.5], [0.25, 0.0]]), ks=[1, 2])
    assert row["val/t1/reward"] == pytest.approx((0.75 + 0.125) / 2)
    assert row["val/t1/max@2"] == pytest.approx((1.0 + 0.25) / 2)
    assert row["val/t1/pass@2"] == 0.5  # of what counts as correct


def test_tallies_keep_rewards_only_where_they_are_not_what_is_correct() -> None:
    batch = scored_batch([[(1.0, [-1.0]), (0.0, [-1.0])], [(0.5, [-1.0]), (1.0, [-1.0])]])
    batch.correct = torch.tensor([1.0, 0.0, 0.0, 1.0])
    tallies = tally_segment(batch, Segment("t1", 0, 2, 1.0))
    assert [tally.rewards for tally in tallies] == [None, [0.5, 1.0]]
    assert merge_tallies(tallies).rewards == [[1.0, 0.0], [0.5, 1.0]]


def test_tallies_keep_rewards_of_0_and_1_that_say_another_thing_than_what_is_correct() -> None:
    batch = scored_batch([[(1.0, [-1.0]), (1.0, [-1.0])], [(1.0, [-1.0]), (0.0, [-1.0])]])
    batch.correct = torch.tensor([0.0, 0.0, 1.0, 0.0])
    tallies = tally_segment(batch, Segment("t1", 0, 2, 1.0))
    assert [tally.rewards for tally in tallies] == [[1.0, 1.0], None]
    merged = merge_tallies(tallies)
    assert merged.correct == [0, 1]
    assert merged.rewards == [[1.0, 1.0], [1.0, 0.0]]
    assert metrics(merged, ks=[1])["val/t1/reward"] == pytest.approx(0.75)


def test_completions_without_an_answer_are_counted() -> None:
    batch = scored_batch([[(1.0, [-1.0]), (0.0, [-1.0])], [(0.0, [-1.0]), (0.0, [-1.0])]])
    batch.given_answers = ["4", None, None, None]
    tallies = tally_segment(batch, Segment("t1", 0, 2, 1.0))
    assert [tally.no_answer for tally in tallies] == [1, 2]
    found = merge_tallies(tallies)
    assert metrics(found, ks=[1])["val/t1/no_answer"] == 0.75
    unknown = replace(tallies[0], no_answer=None, problem_id="of an older log")
    assert merge_tallies([*tallies, unknown]).no_answer is None


def test_arms_of_one_seed_share_the_noise_of_validation_whatever_their_temperature() -> None:
    def seeds(tau: float) -> list[int]:
        engine = ScriptedEngine()
        evaluations = [
            Evaluation("t1", n=2, temperature=1.0),
            Evaluation("live", n=2),
            Evaluation("t06", n=2, temperature=0.6),
        ]
        stack = slots(
            temperature=TemperatureScheduler(Fixed(tau)),
            pass_at_k=PassAtK(evaluations, ks=[1], seed=3),
            rollout=RolloutSampler(engine, 3, SEED),
        )
        Fit(stack).validate()
        return [request.seed for request in engine.requests if request.temperature == 0.6]

    assert len(seeds(0.9)) == 6
    assert seeds(1.0) == seeds(0.9)

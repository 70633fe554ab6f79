"""The reward slot: counters, shaping of training rewards alone, and the pool's life."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler
from scripted import SEED, Fit, ScriptedEngine, ScriptedPool, scored_batch, slots

from e3rl.batch import Rollout, RolloutBatch
from e3rl.budgets.e3_rank import E3Rank
from e3rl.callbacks import reward as reward_file
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.reward import PooledScorer, RewardScorer, count_verdicts
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.engines.base import RolloutRequest
from e3rl.rewards.pool import STATUSES
from e3rl.rewards.scorer import Question
from e3rl.rewards.shaping import LengthShaping
from e3rl.rewards.verdict import Verdict


def by_sample(request: RolloutRequest) -> tuple[str, list[float]]:
    """Samples 0 and 1 right, 2 wrong, 3 hangs; the longer the later."""
    return ("right", "right", "wrong", "hung")[request.sample], [-1.0] * (1 + request.sample)


def scripted(shaping: Any = None, **changed: Any) -> dict[str, Any]:
    return slots(
        reward=RewardScorer(ScriptedPool(), shaping),  # type: ignore[arg-type]
        rollout=RolloutSampler(ScriptedEngine(by_sample), 9, SEED),
        **changed,
    )


def test_counters_tell_how_the_step_s_answers_came_out() -> None:
    fit = Fit(scripted(), validate_every=1).validate().fit()
    for batch in fit.watcher.trained:
        counts = {status: batch.metrics[f"reward/{status}"] for status in STATUSES}
        assert counts == {"correct": 4, "wrong": 2, "unparsed": 0, "timeout": 2, "error": 0}


def test_totals_count_training_and_go_on_after_a_round_trip() -> None:
    stack = scripted()
    Fit(stack, validate_every=1).validate().fit()
    state = stack["reward"].state_dict()
    counts = {"correct": 12, "wrong": 6, "unparsed": 0, "timeout": 6, "error": 0, "no_answer": 0}
    assert state == {"totals": counts, "warned": False}
    resumed = scripted()
    resumed["reward"].load_state_dict(state)
    Fit(resumed).fit()
    assert resumed["reward"].state_dict()["totals"]["timeout"] == 12


def test_shaping_takes_lengths_and_ranks_and_leaves_correct_alone() -> None:
    seen: list[tuple[list[float], list[int], list[float]]] = []

    def shaping(
        rewards: Sequence[float], lengths: Sequence[int], ranks: Sequence[float]
    ) -> list[float]:
        seen.append((list(rewards), list(lengths), list(ranks)))
        return [r * (1 - length / 10) for r, length in zip(rewards, lengths, strict=True)]

    budget = RolloutBudget(E3Rank(n_low=4, n_high=4, n_update=0), 4)
    fit = Fit(scripted(shaping, budget=budget), n_prompts=2, epochs=2).fit()
    last = fit.watcher.trained[-1]
    assert last.tensor("correct").tolist() == [1, 1, 0, 0] * 2
    assert last.tensor("rewards").tolist() == pytest.approx([0.9, 0.8, 0, 0] * 2)
    rewards, lengths, ranks = seen[-1]
    assert (rewards, lengths) == ([1, 1, 0, 0] * 2, [1, 2, 3, 4] * 2)
    expected = last.tensor("ranks")[last.tensor("group")]
    assert ranks == expected.tolist()
    assert all(0 <= rank < 1 for rank in ranks)


@pytest.mark.parametrize("always", [0, 12, 16, 64])
def test_prompts_that_are_always_right_are_shaped_however_many_they_are(always: int) -> None:
    ids = [f"p{i}" for i in range(64)]
    rule = E3Rank()
    rule.decide(ids, 512, 0, 0)
    # The others have means of their own, 0 to 7 of 8, harder with their number.
    solved = [8.0 if i < always else 7.0 * (64 - i) / 64 for i in range(64)]
    rule.observe(ids, [np.full(8, each / 8) for each in solved])
    decision = rule.decide(ids, 512, 1, 1)
    batch = RolloutBatch(ids, ids, ids, ids, [[1]] * 64)
    batch.ranks = torch.from_numpy(decision.ranks)
    batch.always_right = torch.from_numpy(decision.always_right)
    shaped = LengthShaping(mu=1e-3, rank_threshold=0.1)(
        [1.0] * 64, [1000] * 64, batch.ranks_for_shaping()
    )
    # Ranks i/64 up to 0.1 are those of 7 prompts, where none is always right.
    assert shaped.tolist() == [0.5] * max(always, 7) + [1.0] * (64 - max(always, 7))


def test_the_published_shaping_fits() -> None:
    budget = RolloutBudget(E3Rank(n_low=4, n_high=4, n_update=0), 4)
    shaping = LengthShaping(mu=0.5, rank_threshold=1.0)
    fit = Fit(scripted(shaping, budget=budget), n_prompts=2, epochs=2).fit()
    first, last = fit.watcher.trained
    assert first.tensor("rewards").tolist() == [1, 1, 0, 0] * 2  # no prompt is ranked yet
    # 1 - b with b = 0.5/(1 + 0.5) and 1/(1 + 1)
    assert last.tensor("rewards").tolist() == pytest.approx([2 / 3, 0.5, 0, 0] * 2)


def test_validation_is_never_shaped() -> None:
    budget = RolloutBudget(E3Rank(n_low=4, n_high=4, n_update=0), 4)
    shaped = scripted(lambda rewards, *_: [0.25] * len(rewards), budget=budget)
    fit = Fit(shaped, validate_every=3).validate().fit()
    assert all(b.tensor("rewards").unique().tolist() == [0.25] for b in fit.watcher.trained)
    for batch in fit.watcher.validated:
        assert batch.tensor("rewards").tolist() == batch.tensor("correct").tolist()


def test_the_time_that_scoring_beside_generation_saved_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(reward_file, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Timed(ScriptedPool):
        """The first collection waits 1 of 4 seconds, the second 3 of 2, the third 0.5 of 2."""

        costs = iter([(4.0, 1.0), (2.0, 3.0), (2.0, 0.5)])

        def collect(self, progress: bool = False) -> list[Any]:
            self.scoring_s, waited = next(self.costs)
            now[0] += waited
            return super().collect(progress)

    batch = scored_batch([[(1.0, [-1.0])]])
    scorer = PooledScorer(Timed(), batch, None, progress=False)  # type: ignore[arg-type]
    saved = []
    for _ in range(3):
        scorer.collect()
        saved.append(batch.metrics["time/reward_saved_s"])
    assert saved == [3.0, 3.0, 4.5]


def test_every_step_reports_what_was_saved() -> None:
    fit = Fit(scripted(), validate_every=1).validate().fit()
    assert all(batch.metrics["time/reward_saved_s"] == 0.0 for batch in fit.watcher.trained)


def test_scores_keep_the_order_of_submission() -> None:
    def backwards(requests: list[RolloutRequest]) -> list[RolloutRequest]:
        return requests[::-1]

    stack = scripted()
    stack["rollout"].engine.arrange = backwards
    (batch, *_) = Fit(stack).fit().watcher.trained
    assert batch.completions == ["right", "right", "wrong", "hung"] * 2
    assert batch.tensor("correct").tolist() == [1, 1, 0, 0] * 2


def test_the_pool_judges_against_the_prompt_s_own_answer() -> None:
    asked: list[tuple[str, Question]] = []

    class Listening(ScriptedPool):
        def submit(self, completion: str, question: Question) -> int:
            asked.append((completion, question))
            return super().submit(completion, question)

    slot = RewardScorer(Listening())  # type: ignore[arg-type]
    batch = scored_batch([[(1.0, [-1.0])], [(0.0, [-1.0])]])
    batch.answers = ["4", "5"]
    batch.problem_rows = [{}, {"unit": "km"}]
    trainer: Any = SimpleNamespace(
        is_global_zero=True, progress_bar_callback=None, profiler=PassThroughProfiler()
    )
    slot.on_validation_batch_start(trainer, None, batch, 0)  # type: ignore[arg-type]
    assert batch.scorer is not None
    batch.scorer.submit(Rollout(1, 0, (1, 2), (7,), (-1.0,), 1.0, False, "right", 0))
    row = {"source": batch.sources[1], "level": batch.levels[1], "unit": "km"}
    own = Question(batch.prompt_ids[1], "question 1", "5", row)
    assert asked == [("right", own)]


def test_the_self_test_runs_before_anything_is_sampled() -> None:
    class Broken(ScriptedPool):
        def self_test(self) -> None:
            raise RuntimeError("reward self-test failed")

    fit = Fit(slots(reward=RewardScorer(Broken())))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="self-test"):
        fit.validate()
    assert fit.engine.requests == []
    assert fit.pool.closed == 1


@pytest.mark.parametrize("shown", [True, False])
def test_slow_scoring_shows_a_bar_where_the_trainer_shows_bars(shown: bool) -> None:
    fit = Fit(scripted(), validate_every=3, options={"enable_progress_bar": shown})
    fit.validate().fit()
    assert set(fit.pool.progress) == {shown}


def pooled(verdicts: list[Verdict]) -> tuple[Any, dict[str, float]]:
    """A step whose rollouts get these verdicts, and its metrics once it has ended."""
    slot = RewardScorer(ScriptedPool())  # type: ignore[arg-type]
    batch = scored_batch([[(verdict.reward, [-1.0]) for verdict in verdicts]])
    batch.metrics |= count_verdicts(verdicts)
    slot.on_train_batch_end(None, None, None, batch, 0)  # type: ignore[arg-type]
    return slot, batch.metrics


def test_parts_of_rewards_are_logged_as_means_over_all_rollouts() -> None:
    verdicts = [
        Verdict(1.5, "correct", "4", {"right": 1.0, "brief": 0.5}),
        Verdict(0.25, "wrong", "5", {"right": 0.0, "brief": 0.25}),
        Verdict(0.0, "timeout", "6"),
        Verdict(0.0, "wrong", "7"),
    ]
    _, found = pooled(verdicts)
    assert found["reward/part/right"] == 1 / 4
    assert found["reward/part/brief"] == 0.75 / 4
    assert found["reward/correct"] == 1
    assert found["reward/no_answer"] == 0


def test_a_step_whose_completions_have_no_answer_is_said_loudly_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    without, answered = Verdict(0.0, "unparsed"), Verdict(0.0, "wrong", "7")
    _, found = pooled([without, answered])  # half of them
    assert found["reward/no_answer"] == 1
    assert not caplog.records
    slot, _ = pooled([without, without, answered])
    batch = scored_batch([[(0.0, [-1.0])]])
    batch.metrics |= count_verdicts([without])
    slot.on_train_batch_end(None, None, None, batch, 1)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "67% of this step's completions have no answer" in record.getMessage()
    resumed, _ = pooled([answered])
    resumed.load_state_dict(slot.state_dict())
    batch = scored_batch([[(0.0, [-1.0])]])
    batch.metrics |= count_verdicts([without])
    resumed.on_train_batch_end(None, None, None, batch, 2)
    assert len(caplog.records) == 1  # once in a run, not in each of its parts
    assert "reward=last_number" in record.getMessage()


def stopped_step(verdicts: list[Verdict], weights: list[float]) -> None:
    """A step of wrong rollouts, of which those without an answer reach the length limit."""
    slot = RewardScorer(ScriptedPool())  # type: ignore[arg-type]
    lengths = [9 if each.answer is None else 2 for each in verdicts]
    batch = scored_batch([[(0.0, [-1.0] * n) for n in lengths]])
    batch.given_answers = [each.answer for each in verdicts]
    batch.weights = torch.tensor(weights)
    batch.metrics |= count_verdicts(verdicts)
    slot.on_train_batch_end(None, None, None, batch, 0)  # type: ignore[arg-type]


def test_rollouts_that_an_abort_stopped_are_not_among_those_that_have_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    without, answered = Verdict(0.0, "unparsed"), Verdict(0.0, "wrong", "7")
    stopped_step([without, without, without, answered], [0.0, 0.0, 0.0, 1.0])
    stopped_step([without, without], [0.0, 0.0])
    assert not caplog.records
    stopped_step([answered, without, without, answered], [0.0, 0.0, 1.0, 1.0])
    assert not caplog.records  # half of those that went on
    stopped_step([answered, without, without, without, answered], [0.0, 0.0, 1.0, 1.0, 1.0])
    (record,) = caplog.records
    assert "67% of this step's completions have no answer" in record.getMessage()
    assert "67% reach max_new_tokens" in record.getMessage()

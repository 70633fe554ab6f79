"""Rounds, seeds, versions, and the engine's life."""

import math
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.profilers import PassThroughProfiler
from scripted import SEED, Fit, ScriptedEngine, StubModule, encode, problems, slots

from e3rl.batch import RolloutBatch, RolloutScore
from e3rl.budgets.base import SingleRound
from e3rl.callbacks import rollout
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.stopping import StopRequest
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.data.loader import collate
from e3rl.engines.abort import MarkerGatedAbort
from e3rl.engines.base import RolloutRequest
from e3rl.runs.run import connect
from e3rl.seeds import derive_seed
from e3rl.temperatures.base import Constant
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.gains import PaperGain


class TextScorer:
    """Scores by what was sampled, not by the order of arrival."""

    def __init__(self) -> None:
        self.scores: list[RolloutScore] = []

    def submit(self, rollout: Any) -> None:
        self.scores.append(
            RolloutScore(float(rollout.text == "right"), float(rollout.text == "right"))
        )

    def collect(self) -> list[RolloutScore]:
        done, self.scores = self.scores, []
        return done


def ready(rows: Sequence[int], counts: Sequence[int], step: int = 0) -> RolloutBatch:
    """A training batch of the problems `rows`, planned and with a scorer."""
    chosen = problems(9)
    batch = collate([chosen[row] for row in rows], encode, ("train", step))
    batch.allocation = SingleRound(list(counts))
    batch.base_temperature, batch.temperature_of = 0.8, Constant(0.8)
    batch.scorer = TextScorer()
    return batch


class PlanningEngine(ScriptedEngine):
    """Wants to know the longest rollout."""

    longest = 0

    def plan_for(self, longest: int) -> None:
        self.longest = longest


def test_an_engine_that_wants_to_know_is_told_the_longest_rollout() -> None:
    engine = PlanningEngine()
    RolloutSampler(engine, max_new_tokens=3, seed=1).plan_for(40)
    assert engine.longest == 43
    RolloutSampler(ScriptedEngine(), max_new_tokens=3, seed=1).plan_for(40)  # does not care


def sample(batch: RolloutBatch, engine: ScriptedEngine, seed: int = SEED) -> RolloutBatch:
    slot = RolloutSampler(engine, max_new_tokens=3, seed=seed)
    trainer: Any = SimpleNamespace(profiler=PassThroughProfiler())
    slot.on_train_batch_start(trainer, StubModule(), batch, 0)
    return batch


def seeds_by_place(engine: ScriptedEngine, batch: RolloutBatch) -> dict[tuple[str, int], int]:
    return {(batch.prompt_ids[r.prompt], r.sample): r.seed for r in engine.requests}


def test_seeds_derive_from_run_seed_stream_prompt_and_sample() -> None:
    engine = ScriptedEngine()
    batch = sample(ready([4, 2], [1, 2], step=7), engine, seed=11)
    assert seeds_by_place(engine, batch) == {
        ("p4", 0): derive_seed(11, "train", 7, "p4", 0),
        ("p2", 0): derive_seed(11, "train", 7, "p2", 0),
        ("p2", 1): derive_seed(11, "train", 7, "p2", 1),
    }


def test_seeds_do_not_depend_on_what_else_is_in_the_batch() -> None:
    alone, together = ScriptedEngine(), ScriptedEngine()
    one = seeds_by_place(alone, sample(ready([4], [3]), alone))
    many = seeds_by_place(together, sample(ready([7, 4, 1], [2, 5, 1]), together))
    assert one.items() <= many.items()
    assert len(set(many.values())) == 8
    other_step = ScriptedEngine()
    later = seeds_by_place(other_step, sample(ready([4], [3], step=1), other_step))
    assert not set(later.values()) & set(one.values())


def test_a_truncated_distribution_is_refused_in_training() -> None:
    batch = ready([4], [1])
    batch.truncation_of = lambda rows, samples: [(0.9, 0)] * len(rows)
    with pytest.raises(ValueError, match="gradient would be wrong; leave it to validation"):
        sample(batch, ScriptedEngine())


def test_every_sync_is_told_the_temperature_of_the_rollouts() -> None:
    engine = ScriptedEngine()
    sample(ready([4, 2], [1, 2]), engine)
    assert engine.temperatures == [0.8]
    stack = slots(temperature=TemperatureScheduler(Fixed(0.6)))
    assert set(Fit(stack, validate_every=3).validate().fit().engine.temperatures) == {0.6}


def test_the_first_sync_of_a_resumed_run_is_told_the_temperature_that_the_run_had_reached(
    tmp_path: Path,
) -> None:
    def scheduled(every: int) -> Fit:
        stack = slots(
            temperature=TemperatureScheduler(EntropyTarget(PaperGain(34), target=0.5)),
            checkpoint=RunCheckpoint(str(tmp_path / "checkpoints"), every, keep=9),
        )
        return Fit(stack, tmp_path, n_prompts=12)

    whole = scheduled(every=4).fit()
    reached = [float(b.tensor("temperatures")[0]) for b in whole.watcher.trained]
    assert whole.engine.temperatures == pytest.approx(reached)
    assert abs(reached[4] - 1.0) > 1e-3
    resumed = scheduled(every=4).fit(tmp_path / "checkpoints" / "step-000004.ckpt")
    assert resumed.engine.temperatures == pytest.approx(reached[4:])


def test_an_engine_may_finish_in_any_order() -> None:
    def shuffled(requests: list[RolloutRequest]) -> list[RolloutRequest]:
        return sorted(requests, key=lambda r: r.seed)

    first = sample(ready([3, 0, 5], [2, 4, 3]), ScriptedEngine())
    second = sample(ready([3, 0, 5], [2, 4, 3]), ScriptedEngine(arrange=shuffled))
    assert first.completions == second.completions
    for name in ("group", "sample", "tokens", "lengths", "sampler_logprobs", "rewards"):
        torch.testing.assert_close(first.tensor(name), second.tensor(name), rtol=0, atol=0)
    assert first.tensor("group").tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert first.tensor("rewards").unique().numel() == 2  # so that a mix-up would show


@pytest.mark.parametrize(
    "lossy",
    [lambda requests: requests[:-1], lambda requests: [*requests[:-1], requests[0]]],
    ids=["one too few", "one twice"],
)
def test_an_engine_that_does_not_return_every_rollout_once_is_an_error(lossy: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"returned [45] rollouts for 5 requests, 4 of them diff"
    ):
        sample(ready([3, 0], [2, 3]), ScriptedEngine(arrange=lossy))


@pytest.mark.parametrize(
    ("tokens", "logprob", "error", "words"),
    [
        (5, -1.0, RuntimeError, "rollout 1 of prompt row 3: .* 5 tokens where 1 to 3 were asked"),
        (0, -1.0, RuntimeError, "0 tokens where 1 to 3"),
        (2, math.nan, FloatingPointError, "rollout 1 of prompt row 3: .* not finite"),
        (2, -math.inf, FloatingPointError, "not finite"),
    ],
)
def test_rollouts_that_nobody_asked_for_are_errors(
    tokens: int, logprob: float, error: type[Exception], words: str
) -> None:
    def script(request: RolloutRequest) -> tuple[str, list[float]]:
        broken = (request.prompt, request.sample) == (3, 1)
        return ("right", [logprob] * tokens) if broken else ("wrong", [-1.0])

    with pytest.raises(error, match=words):
        sample(ready([3, 0, 5, 1], [2, 4, 3, 2]), ScriptedEngine(script))


@pytest.mark.parametrize("token", [-1, 8, 10**6])
def test_a_token_that_the_policy_does_not_have_is_an_error(token: int) -> None:
    class Foreign(ScriptedEngine):
        def _complete(self, request: RolloutRequest) -> Any:
            return replace(super()._complete(request), tokens=(token,), logprobs=(-1.0,))

    with pytest.raises(RuntimeError, match=f"returned token {token}, and the policy has 8"):
        sample(ready([3], [1]), Foreign())


def test_an_engine_without_logprobs_is_an_error() -> None:
    class Mute(ScriptedEngine):
        def _complete(self, request: RolloutRequest) -> Any:
            return replace(super()._complete(request), logprobs=())

    with pytest.raises(ValueError, match="with 0 log-probs"):
        sample(ready([3], [1]), Mute())


@pytest.mark.parametrize("counts", [[1], [1, -1], [1, 1, 1]])
def test_a_plan_needs_one_count_per_prompt(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="0 or more each"):
        sample(ready([3, 0], counts), ScriptedEngine())


def test_rollouts_are_scored_while_others_are_generated() -> None:
    fit = Fit(slots(), n_prompts=2).fit()
    assert fit.engine.events == ["sample", "submit"] * 8  # each before the next is sampled


def test_rollouts_carry_the_number_of_updates_of_the_policy_that_sampled_them() -> None:
    fit = Fit(slots(), validate_every=3, epochs=2, minibatches=2).validate().fit()
    stamps = [batch.tensor("policy_version").unique().tolist() for batch in fit.watcher.trained]
    assert stamps == [[0], [1], [2], [3], [4], [5]]
    validated = [x.tensor("policy_version").unique().tolist() for x in fit.watcher.validated]
    assert validated == [[0], [0], [3], [3], [6], [6]]  # two batches each


def test_version_goes_on_after_a_round_trip() -> None:
    slot = RolloutSampler(ScriptedEngine(), 3, SEED)
    slot.version = 41
    other = RolloutSampler(ScriptedEngine(), 3, SEED)
    other.load_state_dict(slot.state_dict())
    assert other.version == 41


def test_the_engine_is_closed_after_the_fit_not_after_the_baseline() -> None:
    fit = Fit(slots(), validate_every=3).validate()
    assert (fit.engine.closed, fit.pool.closed) == (0, 0)
    fit.fit()
    assert (fit.engine.closed, fit.pool.closed) == (1, 1)


@pytest.mark.parametrize("error", [FloatingPointError, KeyboardInterrupt])
def test_engine_and_pool_are_closed_when_anything_raises(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise error("diverged")

    fit = Fit(slots())
    monkeypatch.setattr(StubModule, "training_step", fail)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises((error, SystemExit)):
            fit.fit()
    finally:
        signal.signal(signal.SIGINT, handler)  # Lightning ignores it once it was interrupted
    assert (fit.engine.closed, fit.pool.closed) == (1, 1)


def test_time_is_reported_in_parts() -> None:
    batch = sample(ready([3], [2]), ScriptedEngine())
    assert set(batch.metrics) == {"time/sync_s", "time/rollout_s", "time/reward_s"}
    assert all(seconds >= 0 for seconds in batch.metrics.values())


def test_a_length_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        RolloutSampler(ScriptedEngine(), 0, SEED)


def test_a_run_tells_its_engine_of_the_longest_rollout() -> None:
    class Planned(ScriptedEngine):
        longest = 0

        def plan_for(self, longest: int) -> None:
            self.longest = longest

    engine = Planned()
    trainer = SimpleNamespace(callbacks=[RolloutSampler(engine, 30, SEED)])
    connect(trainer, StopRequest(), SimpleNamespace(longest_prompt=12))  # type: ignore[arg-type]
    assert engine.longest == 12 + 30


def test_rollouts_are_stopped_early_in_training_and_never_in_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def long(request: RolloutRequest) -> tuple[str, list[float]]:
        return "wrong", [-1.0] * min(request.max_new_tokens, 3)

    engine = ScriptedEngine(script=long)
    rule = MarkerGatedAbort(horizon=2, marker="!", keep=1e-9)
    stack = slots(rollout=RolloutSampler(engine, 4, SEED, rule))
    seen: list[RolloutBatch] = []
    fit = Fit(stack, validate_every=1)
    stack["metrics"].on_train_batch_end = lambda *a, **k: seen.append(a[3])  # type: ignore
    fit.fit()
    limits = {request.may_be_cut: request.max_new_tokens for request in engine.requests}
    assert limits == {True: 2, False: 4}  # training, validation
    assert all(batch.tensor("weights").max() == 0 for batch in seen)
    assert all(batch.tensor("truncated").all() for batch in seen)
    assert [batch.metrics["rollout/stopped"] for batch in seen] == [1.0] * 3
    with pytest.raises(ValueError, match=r"horizon=2 is not below max_new_tokens=2"):
        Fit(slots(rollout=RolloutSampler(engine, 2, SEED, rule))).fit()
    assert len(seen) == 3
    # Beside 3 of another rank, none of which was stopped.
    monkeypatch.setattr(rollout, "all_sum", lambda mine: [mine[0], mine[1] + 3])
    Fit(stack).fit()
    shares = [batch.metrics["rollout/stopped"] for batch in seen[3:]]
    assert shares == [b.n_rollouts / (b.n_rollouts + 3) for b in seen[3:]]


def test_a_prefill_that_holds_the_marker_of_an_abort_is_refused() -> None:
    rule = MarkerGatedAbort(horizon=2, marker="!")
    fit = Fit(slots(rollout=RolloutSampler(ScriptedEngine(), 4, SEED, rule)))
    fit.module.policy.prefill = "so!"
    with pytest.raises(ValueError, match=r"policy\.prefill='so!' holds marker='!'"):
        fit.fit()
    assert fit.engine.requests == []


def test_a_rollout_that_was_stopped_is_wrong_whatever_its_text_may_be_read_as() -> None:
    def long(request: RolloutRequest) -> tuple[str, list[float]]:
        return "right", [-1.0] * min(request.max_new_tokens, 2 + request.sample % 2)

    rule = MarkerGatedAbort(horizon=3, marker="!", keep=1e-9)  # stops samples 1 and 3
    fit = Fit(slots(rollout=RolloutSampler(ScriptedEngine(script=long), 4, SEED, rule))).fit()
    for batch in fit.watcher.trained:
        assert batch.tensor("weights").tolist() == [1, 0, 1, 0] * 2
        assert batch.tensor("correct").tolist() == [1, 0, 1, 0] * 2
        assert batch.tensor("rewards").tolist() == [1, 0, 1, 0] * 2

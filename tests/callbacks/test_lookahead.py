"""Sampling steps ahead: which policy, temperature and prompts, what overlaps, what is state."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted import SEED, Fit, ScriptedEngine, StubModule, encode, problems, slots

from e3rl.batch import Rollout, RolloutBatch
from e3rl.budgets.e3_rank import E3Rank
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.checkpoint import RunCheckpoint
from e3rl.callbacks.pass_at_k import PassAtK
from e3rl.callbacks.rollout import RolloutSampler
from e3rl.callbacks.temperature import TemperatureScheduler
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.data.loader import PromptLoader
from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.gains import PaperGain

pytestmark = pytest.mark.end_to_end


def uneven(request: RolloutRequest) -> tuple[str, list[float]]:
    """Right or wrong, at an entropy of 0.5 to 2.5 nats, by the seed."""
    return ("right" if request.seed % 2 else "wrong"), [-0.5 - request.seed % 3]


@dataclass
class SlowEngine(ScriptedEngine):
    """Has weights of its own; a step's last rollout waits until the policy was updated on."""

    holds_weights: bool = True
    updated: threading.Event = field(default_factory=threading.Event)
    threads: set[str] = field(default_factory=set)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        self.threads.add(threading.current_thread().name)
        ahead = threading.current_thread() is not threading.main_thread()
        for number, rollout in enumerate(super().generate(requests)):
            if ahead and number == len(requests) - 1:
                assert self.updated.wait(20)
            yield rollout
        self.updated.clear()


@dataclass
class PatientEngine(ScriptedEngine):
    """Has weights of its own and others held back; every call takes as long as its seeds say."""

    holds_weights: bool = True
    held: int = 0  # versions that were held back
    held_at: list[float] = field(default_factory=list)  # and the temperatures they are for
    wait_s: float = 0.0  # more, where it samples ahead

    def hold(self, policy: Policy, version: int, temperature: float) -> Callable[[], None]:
        self.held += 1
        self.held_at.append(temperature)
        assert version > self.versions[-1]
        return lambda: self.versions.append(version)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        ahead = threading.current_thread() is not threading.main_thread()
        time.sleep(requests[0].seed % 5 / 100 + self.wait_s * ahead)
        yield from super().generate(requests)


def fit_of(engine: ScriptedEngine, folder: Path | None = None, **settings: Any) -> Fit:
    """Two epochs of three steps of two prompts, with everything that learns."""
    temperature = EntropyTarget(PaperGain(3), init_steps=1)
    stack = slots(
        budget=RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=2), 4),
        temperature=TemperatureScheduler(temperature, settings.get("lookahead", 0)),
        pass_at_k=PassAtK([Evaluation("live", n=2)], ks=[1]),
        rollout=RolloutSampler(engine, 3, SEED),
    )
    if folder:
        stack["checkpoint"] = RunCheckpoint(str(folder / "checkpoints"), every=1, keep=9)
    return Fit(stack, folder, **{"epochs": 2, "validate_every": 2, **settings})


def sampled(fit: Fit) -> list[tuple[Any, ...]]:
    """What was trained on, step by step."""
    return [
        (
            b.prompt_ids,
            b.group_sizes.tolist(),
            b.tensor("temperatures").tolist(),
            b.completions,
            b.tensor("policy_version").tolist(),
        )
        for b in fit.watcher.trained
    ]


ENGINES = pytest.mark.parametrize(
    "make",
    [ScriptedEngine, partial(ScriptedEngine, holds_weights=True), PatientEngine],
    ids=["without weights", "with weights", "holding weights"],
)


@ENGINES
@pytest.mark.parametrize("n", [0, 1, 2, 3, 9])
def test_every_step_trains_on_rollouts_of_the_policy_so_many_updates_before(
    n: int, make: Callable[[], ScriptedEngine]
) -> None:
    fit = fit_of(make(), lookahead=n).fit()
    versions = [set(b.tensor("policy_version").tolist()) for b in fit.watcher.trained]
    assert versions == [{max(0, step - n)} for step in range(6)]
    ages = [b.metrics["policy/age"] for b in fit.watcher.trained]
    assert ages == [float(min(step, n)) for step in range(6)]


@pytest.mark.parametrize("n", [2, 3])
def test_rollouts_do_not_depend_on_what_takes_how_long(n: int) -> None:
    """Nor on who samples: right before the update, beside it, from weights that were held."""
    plain = sampled(fit_of(ScriptedEngine(uneven), lookahead=n).fit())
    engine = PatientEngine(uneven)
    assert sampled(fit_of(engine, lookahead=n).fit()) == plain
    beside = ScriptedEngine(uneven, holds_weights=True)
    assert sampled(fit_of(beside, lookahead=n).fit()) == plain


def test_the_sampler_is_several_steps_ahead_of_the_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first update ends only when the rollouts of steps 1 to 3 are there."""
    engine, there = PatientEngine(), threading.Semaphore(0)
    extend, step = RolloutBatch.extend, StubModule.training_step

    def arrived(self: RolloutBatch, *args: Any, **named: Any) -> None:
        extend(self, *args, **named)
        if threading.current_thread() is not threading.main_thread():
            there.release()

    def updated(self: StubModule, batch: RolloutBatch, batch_idx: int) -> None:
        if batch_idx == 0:
            assert all(there.acquire(timeout=20) for _ in range(3))
        step(self, batch, batch_idx)

    monkeypatch.setattr(RolloutBatch, "extend", arrived)
    monkeypatch.setattr(StubModule, "training_step", updated)
    fit = Fit(slots(rollout=RolloutSampler(engine, 3, SEED)), lookahead=3, n_prompts=12).fit()
    assert [b.tensor("policy_version").unique().tolist() for b in fit.watcher.trained] == [
        *([0], [0], [0], [0], [1], [2])
    ]


def test_one_step_ahead_no_weights_are_held_back() -> None:
    """At a step's beginning nobody samples, so that a canary may compare engine and policy."""
    engine = PatientEngine()
    fit_of(engine, lookahead=1).fit()
    assert engine.held == 0


@pytest.mark.parametrize("n", [1, 2, 3])
def test_prompts_and_seeds_are_those_of_a_run_that_does_not_look_ahead(n: int) -> None:
    ahead, plain = (fit_of(ScriptedEngine(), lookahead=n).fit() for n in (n, 0))
    prompts = [[b.prompt_ids for b in fit.watcher.trained] for fit in (ahead, plain)]
    assert prompts[0] == prompts[1]
    assert len(prompts[0]) == 6  # none is lost at the end, none sampled beyond it
    streams = [[b.stream for b in fit.watcher.trained] for fit in (ahead, plain)]
    assert streams[0] == streams[1]
    trained = sum(b.n_rollouts for b in ahead.watcher.trained)
    validated = sum(b.n_rollouts for b in ahead.watcher.validated)
    assert len(ahead.engine.requests) == trained + validated


def test_an_engine_with_weights_of_its_own_samples_while_the_policy_is_updated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = SlowEngine()
    step = StubModule.training_step

    def updated(self: StubModule, batch: RolloutBatch, batch_idx: int) -> None:
        step(self, batch, batch_idx)
        engine.updated.set()  # the next step's last rollout can only finish after this

    monkeypatch.setattr(StubModule, "training_step", updated)
    overlapped = fit_of(engine, lookahead=1).fit()
    assert any(name.startswith("rollouts") for name in engine.threads)
    plain = fit_of(ScriptedEngine(), lookahead=1).fit()
    assert sampled(overlapped) == sampled(plain)
    reports = [b.metrics for b in overlapped.watcher.trained]
    assert ["time/lookahead_wait_s" in report for report in reports] == [True] * 5 + [False]


def test_temperatures_answer_to_entropies_one_step_later_than_without() -> None:
    fit = fit_of(ScriptedEngine(uneven), lookahead=1).fit()
    decided = [b.metrics["temperature/value"] for b in fit.watcher.trained]  # after each step
    used = [float(b.tensor("temperatures")[0]) for b in fit.watcher.trained]
    assert used[:2] == [1.0, 1.0]  # decided before any entropy was known
    assert used[2:] == pytest.approx(decided[:4])  # after step t: of step t + 2
    assert len(set(used)) > 2


def test_budgets_know_everything_up_to_the_step_before_the_current_one() -> None:
    rule = E3Rank(n_low=2, n_high=6, n_update=2)
    known: list[tuple[int, int]] = []
    decide = rule.decide

    def noted(ids: Any, total: int, step: int, epoch: int) -> Any:
        known.append((step, len(rule.state_dict()["history"]["rollouts"])))
        return decide(ids, total, step, epoch)

    rule.decide = noted  # type: ignore[method-assign]
    Fit(slots(budget=RolloutBudget(rule, 4)), epochs=2, lookahead=1).fit()
    # Two new prompts a step: step 2 is decided in step 1, when step 0 was learnt from.
    assert known == [(0, 0), (1, 0), (2, 2), (3, 4), (4, 6), (5, 6)]


@ENGINES
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("finished", [1, 2, 3, 5])
def test_a_run_resumed_anywhere_ends_as_the_whole_one(
    finished: int, n: int, make: Callable[..., ScriptedEngine], tmp_path: Path
) -> None:
    whole = fit_of(make(uneven), tmp_path, lookahead=n).fit()
    rest = fit_of(make(uneven), lookahead=n)
    rest.fit(tmp_path / "checkpoints" / f"step-{finished:06d}.ckpt")
    assert sampled(rest) == sampled(whole)[finished:]
    rewards = [[b.tensor("rewards").tolist() for b in f.watcher.trained] for f in (whole, rest)]
    assert rewards[1] == rewards[0][finished:]
    # The next steps' rollouts came with the checkpoint; the last step samples nothing.
    fresh = {r.seed for r in rest.engine.requests}
    first = {r.seed for r in whole.engine.requests} - fresh
    there = whole.watcher.trained[finished : finished + n]
    assert len(first) >= sum(batch.n_rollouts for batch in there)


def test_a_resumed_run_is_as_far_ahead_as_before(tmp_path: Path) -> None:
    """What came with the checkpoint is trained on while later steps are being sampled."""
    settings = {"lookahead": 3, "epochs": 4, "validate_every": 12}
    fit_of(PatientEngine(), tmp_path, **settings).fit()
    engine = PatientEngine(wait_s=0.05)
    rest = fit_of(engine, **settings)
    rest.fit(tmp_path / "checkpoints" / "step-000004.ckpt")
    assert engine.held >= 3
    assert set(engine.held_at) <= {b.base_temperature for b in rest.watcher.trained}
    waits = [b.metrics.get("time/lookahead_wait_s") for b in rest.watcher.trained]
    assert waits[:2] == [None, None]  # their followers came with it
    assert None not in waits[2:-1]


def test_what_comes_behind_an_error_is_not_sampled() -> None:
    class Broken(PatientEngine):
        def hold(self, policy: Policy, version: int, temperature: float) -> Callable[[], None]:
            self.held += 1

            def take_over() -> None:
                if version == 1:
                    raise RuntimeError("no server is left")
                self.versions.append(version)

            return take_over

    engine = Broken(wait_s=0.05)
    with pytest.raises(RuntimeError, match="no server is left"):
        fit_of(engine, lookahead=3, epochs=4, validate_every=12).fit()
    assert max(engine.versions) == 0


def test_a_run_goes_on_without_looking_ahead_and_loses_no_rollouts(tmp_path: Path) -> None:
    whole = fit_of(ScriptedEngine(), tmp_path, lookahead=1).fit()
    rest = fit_of(ScriptedEngine(), lookahead=0)
    rest.fit(tmp_path / "checkpoints" / "step-000002.ckpt")
    assert sampled(rest)[0] == sampled(whole)[2]
    versions = [set(b.tensor("policy_version").tolist()) for b in rest.watcher.trained]
    assert versions == [{1}, {3}, {4}, {5}]


def test_a_run_goes_on_with_less_look_ahead_and_loses_no_rollouts(tmp_path: Path) -> None:
    whole = fit_of(PatientEngine(), tmp_path, lookahead=3).fit()
    rest = fit_of(PatientEngine(), lookahead=1)
    rest.fit(tmp_path / "checkpoints" / "step-000002.ckpt")
    assert sampled(rest)[:3] == sampled(whole)[2:5]
    versions = [set(b.tensor("policy_version").tolist()) for b in rest.watcher.trained]
    assert versions == [{0}, {0}, {1}, {4}]


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_while_sampling_ahead_ends_the_run_with_that_error(n: int) -> None:
    class Broken(ScriptedEngine):
        def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
            if threading.current_thread() is not threading.main_thread():
                raise FloatingPointError("log-probs are not finite")
            return super().generate(requests)

    engine = Broken(holds_weights=True)
    with pytest.raises(FloatingPointError, match="log-probs are not finite"):
        fit_of(engine, lookahead=n).fit()
    assert engine.closed == 1


@pytest.mark.parametrize("n", [1, 3])
def test_an_error_in_the_update_stops_the_sampling_before_the_engine_is_closed(
    n: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    begun, failed = threading.Event(), threading.Event()

    class Endless(ScriptedEngine):
        def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
            ahead = threading.current_thread() is not threading.main_thread()
            try:
                for rollout in super().generate(requests):
                    yield rollout
                    if ahead:
                        begun.set()
                        assert failed.wait(20)
            finally:
                order.append("sampling ended")

        def close(self) -> None:
            order.append("closed")

    def fails(self: StubModule, batch: RolloutBatch, batch_idx: int) -> None:
        assert begun.wait(20)
        failed.set()
        raise RuntimeError("the update failed")

    monkeypatch.setattr(StubModule, "training_step", fails)
    with pytest.raises(RuntimeError, match="the update failed"):
        fit_of(Endless(holds_weights=True), lookahead=n).fit()
    assert order[-2:] == ["sampling ended", "closed"]


def test_state_holds_the_sampled_batch_of_every_rank_as_builtins_and_tensors(
    tmp_path: Path,
) -> None:
    fit = fit_of(ScriptedEngine(), tmp_path, lookahead=2).fit()
    saved = torch.load(tmp_path / "checkpoints" / "step-000003.ckpt", weights_only=True)
    (loader,) = saved["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    assert loader["step"] == 3
    for upcoming, batch in zip(loader["upcoming"], fit.watcher.trained[3:5], strict=True):
        (shard,) = upcoming["shards"]
        assert shard["completions"] == batch.completions
        assert shard["rewards"].equal(batch.tensor("rewards"))
        assert [f"p{row}" for row in upcoming["rows"]] == batch.prompt_ids


def test_rollouts_ahead_are_sampled_anew_by_another_number_of_ranks() -> None:
    loader = Fit(slots(), lookahead=1).training
    batch = next(iter(loader))
    batch.upcoming[1].extend([], [], pad=0)
    state = loader.state_dict()
    assert len(state["upcoming"][0]["shards"]) == 1
    two = PromptLoader(problems(6), encode, 2, SEED, rank=1, world_size=2, lookahead=1)
    two.load_state_dict(state)
    following = next(iter(two))
    assert following.group is None
    assert following.prompt_ids == batch.upcoming[1].prompt_ids[1::2]


@dataclass
class SleepyEngine(ScriptedEngine):
    """Sleeps after a rest, until new weights wake it."""

    holds_weights: bool = True
    asleep: bool = False
    slept: int = 0

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        super().sync(policy, version, temperature)
        self.asleep = False

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        assert not self.asleep
        yield from super().generate(requests)

    def rest(self) -> None:
        self.asleep = True
        self.slept += 1

    def metrics(self) -> dict[str, float]:
        return {}

    def interrupt(self) -> None:
        """Nothing takes long."""


@pytest.mark.parametrize("n", [1, 2, 3])
def test_an_engine_rests_once_all_that_is_sampled_from_its_weights_is_there(n: int) -> None:
    engine = SleepyEngine()
    fit = fit_of(engine, lookahead=n).fit()
    versions = [set(b.tensor("policy_version").tolist()) for b in fit.watcher.trained]
    assert versions == [{max(0, step - n)} for step in range(6)]
    assert engine.slept

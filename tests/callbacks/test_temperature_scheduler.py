"""The temperature slot: what the controller reads, the horizon, and what validation is offered."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted import Fit, scored_batch, slots

from e3rl.batch import MeasuredEntropy
from e3rl.budgets.e3_rank import E3Rank
from e3rl.callbacks import temperature as temperature_file
from e3rl.callbacks.budget import RolloutBudget
from e3rl.callbacks.pass_at_k import PassAtK
from e3rl.callbacks.temperature import TemperatureScheduler, difficulty_of, read_entropy
from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.temperatures.annealing import CosineAnnealing
from e3rl.temperatures.base import Constant, Difficulty, EntropyReading
from e3rl.temperatures.entropy_target import EntropyTarget
from e3rl.temperatures.fixed import Fixed
from e3rl.temperatures.gains import PaperGain
from e3rl.temperatures.multi_temperature import MultiTemperature
from e3rl.temperatures.spreads import ByDifficulty, Ladder


class Rising(Fixed):
    """0.1 more after every step."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.total_steps = 0
        self.readings: list[EntropyReading] = []

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        self.total_steps = total_steps

    def decide(self, step: int, difficulty: Difficulty | None = None) -> Constant:
        assert step == len(self.readings)  # the step after the last observed
        return Constant(0.5 + 0.1 * step)

    def observe(self, reading: EntropyReading) -> None:
        self.readings.append(reading)


def test_the_reading_is_token_weighted_over_all_rollouts() -> None:
    # Sums 2 over 1 token, 3 over 3: 5/4. The mean of the means would be 1.5. The third rollout
    # has no advantage and counts all the same: (2 + 3 + 16) / (1 + 3 + 4).
    batch = scored_batch([[(1.0, [-2.0]), (0.0, [-1.0] * 3)], [(0.0, [-4.0] * 4)]])
    batch.advantages = torch.tensor([0.5, -0.5, 0.0])
    reading = read_entropy(batch, 3)
    assert reading.sampled == pytest.approx(21 / 8)
    assert (reading.step, reading.tokens, reading.temperature) == (3, 8, 1.0)
    assert reading.exact is None


@pytest.mark.parametrize(
    ("weights", "entropy", "tokens"),
    [
        ([2.0, 1.0, 0.0], 7 / 5, 5),  # (2 · 2 + 3) / (2 · 1 + 3)
        ([0.0, 0.0, 0.0], 21 / 8, 8),  # none goes on: what they sampled is all there is
    ],
)
def test_rollouts_that_go_on_for_stopped_ones_count_for_them_in_the_reading(
    weights: list[float], entropy: float, tokens: int
) -> None:
    """The first tokens of many rollouts, which were stopped, would have another entropy."""
    batch = scored_batch([[(1.0, [-2.0]), (0.0, [-1.0] * 3)], [(0.0, [-4.0] * 4)]])
    batch.weights = torch.tensor(weights)
    reading = read_entropy(batch, 0)
    assert (reading.sampled, reading.tokens) == (pytest.approx(entropy), tokens)


def test_the_reading_sums_over_ranks_before_it_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    other = [10.0, 2.0, 4.0]  # surprisal, tokens, tokens times temperature of a second rank
    monkeypatch.setattr(
        temperature_file, "all_sum", lambda own: [a + b for a, b in zip(own, other, strict=True)]
    )
    reading = read_entropy(scored_batch([[(1.0, [-2.0, -3.0])]]), 0)
    assert reading.sampled == pytest.approx(15 / 4)
    assert reading.temperature == pytest.approx((2 + 4) / 4)


def test_exact_figures_come_from_the_probe() -> None:
    batch = scored_batch([[(1.0, [-2.0, -1.0])]])
    batch.entropy = MeasuredEntropy(
        tokens=4,
        entropy_sum=2.0,
        entropy_t1_sum=1.0,
        varentropy_sum=6.0,
        sampled_t1_sum=3.0,
        factors=(1.2, 0.8),
        curve_sums=(3.0, 1.0),
    )
    reading = read_entropy(batch, 0)
    assert (reading.sampled, reading.exact, reading.varentropy) == (1.5, 0.5, 1.5)
    assert reading.curve == ((0.8, 0.25), (1.2, 0.75))
    slot = TemperatureScheduler(Fixed())
    trainer: Any = SimpleNamespace(fit_loop=SimpleNamespace(total_batch_idx=0))
    slot.on_train_batch_end(trainer, None, None, batch, 0)  # type: ignore[arg-type]
    assert {name: x for name, x in batch.metrics.items() if name.startswith("policy/")} == {
        "policy/entropy": 1.5,
        "policy/entropy_exact": 0.5,
        "policy/entropy_exact_t1": 0.25,
        "policy/entropy_sampled_t1": 0.75,
        "policy/varentropy": 1.5,
    }


def test_missing_logprobs_are_an_error_that_names_the_slot() -> None:
    batch = scored_batch([[(1.0, [-2.0])]])
    batch.sampler_logprobs = None
    with pytest.raises(RuntimeError, match=r"sampler_logprobs is missing: the `rollout` slot"):
        read_entropy(batch, 0)


def test_logprobs_that_are_no_numbers_stop_a_run_with_a_schedule() -> None:
    batch = scored_batch([[(1.0, [math.nan])]])
    slot = TemperatureScheduler(EntropyTarget(PaperGain(34)))
    trainer: Any = SimpleNamespace(fit_loop=SimpleNamespace(total_batch_idx=0))
    with pytest.raises(ValueError, match="check the sampler's log-probs"):
        slot.on_train_batch_end(trainer, None, None, batch, 0)  # type: ignore[arg-type]


def test_the_horizon_is_the_length_of_the_run_in_batches() -> None:
    rule = Rising()
    Fit(slots(temperature=TemperatureScheduler(rule)), epochs=4, minibatches=3).fit()
    assert rule.total_steps == 4 * 3  # of 36 optimiser steps
    assert [reading.step for reading in rule.readings] == list(range(12))


def test_annealing_starts_in_the_last_part_of_the_run_however_many_optimiser_steps() -> None:
    annealing = CosineAnnealing(eta=0.9, ratio=0.4)
    rule = EntropyTarget(PaperGain(34), annealing, init_steps=1)
    fit = Fit(slots(temperature=TemperatureScheduler(rule)), n_prompts=20, minibatches=2).fit()
    factors = [batch.metrics["temperature/annealing"] for batch in fit.watcher.trained]
    assert len(factors) == 10
    assert factors[:5] == [1.0] * 5  # the decision of step 4 is for step 5
    assert factors == sorted(factors, reverse=True)
    assert factors[6] < 1.0
    assert factors[-1] == pytest.approx(0.9)


def test_validation_is_offered_the_temperature_that_trains_next() -> None:
    evaluations = [Evaluation("live", n=2), Evaluation("t1", n=2, temperature=1.0)]
    stack = slots(
        temperature=TemperatureScheduler(Rising()), pass_at_k=PassAtK(evaluations, ks=[1])
    )
    fit = Fit(stack, validate_every=1).validate().fit()
    trained = [float(b.tensor("temperatures").unique()) for b in fit.watcher.trained]
    live = [
        float(b.tensor("temperatures")[b.tensor("sample") >= 2].unique())
        for b in fit.watcher.validated[::2]
    ]
    assert trained == pytest.approx([0.5, 0.6, 0.7])
    assert live == pytest.approx([*trained, 0.8])  # the baseline's, then after every step
    for batch in fit.watcher.validated:
        assert batch.tensor("temperatures")[batch.tensor("sample") < 2].unique().tolist() == [1.0]


def test_every_rollout_may_have_a_temperature_of_its_own() -> None:
    ladder = MultiTemperature(Fixed(0.5), Ladder([1.0, 1.5, 2.0, 2.5]))
    fit = Fit(slots(temperature=TemperatureScheduler(ladder))).fit()
    assert {(r.sample, r.temperature) for r in fit.engine.requests} == {
        (0, 0.5),
        (1, 0.75),
        (2, 1.0),
        (3, 1.25),
    }
    for batch in fit.watcher.trained:
        expected = 0.5 + 0.25 * batch.tensor("sample")
        assert batch.tensor("temperatures").tolist() == expected.tolist()
        lengths = batch.tensor("completion_mask").sum(dim=1)
        mean = float((lengths * expected).sum() / lengths.sum())
        assert batch.metrics["rollout/temperature"] == pytest.approx(mean)


def test_engine_and_live_validation_have_the_steps_own_temperature() -> None:
    # The ladder's first rung is another one.
    stack = slots(
        temperature=TemperatureScheduler(MultiTemperature(Fixed(0.5), Ladder([1.5, 1.0]))),
        pass_at_k=PassAtK([Evaluation("live", n=2)], ks=[1]),
    )
    fit = Fit(stack, validate_every=3).validate().fit()
    assert set(fit.engine.temperatures) == {0.5}
    for batch in fit.watcher.validated:
        assert set(batch.tensor("temperatures").tolist()) == {0.5}


@pytest.mark.parametrize("lookahead", [0, 1])
def test_harder_prompts_are_sampled_hotter_by_the_ranks_of_the_batch(lookahead: int) -> None:
    stack = slots(
        budget=RolloutBudget(E3Rank(n_low=2, n_high=6, n_update=2), 4),
        temperature=TemperatureScheduler(
            MultiTemperature(Fixed(0.8), ByDifficulty(kappa=0.25)), lookahead
        ),
    )
    fit = Fit(stack, epochs=3, per_step=3, lookahead=lookahead).fit()
    departed = 0
    for batch in fit.watcher.trained:
        ranks = batch.tensor("ranks")
        above = (ranks - ranks.nanmean()).nan_to_num()
        expected = 0.8 * (1 + 0.5 * above)
        assert batch.tensor("temperatures").tolist() == pytest.approx(
            expected[batch.tensor("group")].tolist()
        )
        assert expected.mean() == pytest.approx(0.8)
        departed += bool(above.abs().max() > 0)
    assert departed >= 1


def test_the_mean_rank_is_that_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = scored_batch([[(1.0, [-1.0])]] * 3)
    batch.ranks = torch.tensor([0.25, math.nan, 0.75])
    monkeypatch.setattr(temperature_file, "all_sum", lambda own: [own[0] + 0.5, own[1] + 1])
    difficulty = difficulty_of(batch)
    assert difficulty.ranks[::2] == (0.25, 0.75)
    assert math.isnan(difficulty.ranks[1])
    assert difficulty.mean == 0.5  # (0.25 + 0.75 + 0.5) / 3


def test_without_a_seen_prompt_there_is_no_mean_rank() -> None:
    batch = scored_batch([[(1.0, [-1.0])]])
    batch.ranks = torch.tensor([math.nan])
    assert math.isnan(difficulty_of(batch).mean)


def test_a_run_without_a_number_of_epochs_is_refused() -> None:
    trainer: Any = SimpleNamespace(max_epochs=-1, num_training_batches=3)
    with pytest.raises(ValueError, match=r"trainer.max_epochs=-1: .* set a number of epochs"):
        TemperatureScheduler(Fixed()).on_train_start(trainer, None)  # type: ignore[arg-type]


def test_state_is_the_rule_s() -> None:
    rule = EntropyTarget(PaperGain(34), init_steps=1)
    slot = TemperatureScheduler(rule)
    slot.strategy.observe(EntropyReading(0, 1.0, 0.5, 100))
    other = TemperatureScheduler(EntropyTarget(PaperGain(34), init_steps=1))
    other.load_state_dict(slot.state_dict())
    assert other.state_dict() == slot.state_dict()
    assert other.strategy.decide(1) == slot.strategy.decide(1)


def test_the_temperature_that_was_sampled_at_is_weighed_as_rollouts_count() -> None:
    """Lengths 1, 3 and 4 that count twice, once and not at all: (2 · .5 + 3 · 1) / 5."""
    batch = scored_batch([[(1.0, [-2.0]), (0.0, [-1.0] * 3)], [(0.0, [-4.0] * 4)]])
    batch.weights = torch.tensor([2.0, 1.0, 0.0])
    batch.temperatures = torch.tensor([0.5, 1.0, 2.0])
    reading = read_entropy(batch, 0)
    assert reading.temperature == pytest.approx(0.8)
    assert reading.sampled == pytest.approx((2 * 2 + 3) / 5)

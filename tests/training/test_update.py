import dataclasses
import math

import pytest
import torch

from e3rl.functional.mismatch import Correction, truncated
from e3rl.losses.policy_loss import LossParts
from e3rl.training.update import UpdateSettings, UpdateStatistics, unequal_counts
from update_harness import make_loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"minibatches": 0}, r"settings\.minibatches=0: use at least 1"),
        ({"inner_epochs": 0}, r"settings\.inner_epochs=0"),
        ({"tokens_per_microbatch": 0}, r"settings\.tokens_per_microbatch=0"),
        ({"max_grad_norm": 0.0}, r"settings\.max_grad_norm=0\.0: use a number > 0"),
        ({"max_grad_norm": float("nan")}, r"settings\.max_grad_norm=nan: use a number > 0"),
        ({"skip_zero_advantage": "yes"}, r"settings\.skip_zero_advantage='yes': choose one of"),
        ({"empty_batch": "stop"}, r"settings\.empty_batch='stop': choose one of"),
        ({"old_logprobs": "engine"}, r"settings\.old_logprobs='engine': choose one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        UpdateSettings(**settings)


@pytest.mark.parametrize(
    ("skip", "loss", "skips"),
    [
        ("exact", {}, True),
        ("off", {}, False),
        ("renormalise", {}, True),
        ("exact", {"entropy_coef": 0.1}, False),
        ("exact", {"kl_coef": 0.1}, False),
    ],
)
def test_rollouts_are_skipped_only_where_the_loss_allows_it(skip, loss, skips):
    assert UpdateSettings(skip_zero_advantage=skip).skips(make_loss(**loss)) is skips


def test_renormalising_needs_a_loss_without_further_terms():
    with pytest.raises(ValueError, match="use exact or off"):
        UpdateSettings(skip_zero_advantage="renormalise").check(make_loss(kl_coef=0.1))


def test_the_samplers_log_probs_as_old_ones_and_a_correction_exclude_each_other():
    loss = make_loss(correction=truncated)
    with pytest.raises(ValueError, match=r"count them twice: use old_logprobs=trainer or loss/cor"):
        UpdateSettings(old_logprobs="sampler").check(loss)
    UpdateSettings().check(loss)
    UpdateSettings(old_logprobs="sampler").check(make_loss())


def test_steps_of_a_batch_are_minibatches_times_passes():
    assert UpdateSettings(minibatches=3, inner_epochs=2).steps_per_batch == 6


def parts(loss: float, logprobs: list[float], log_ratios: list[float], clipped: int) -> LossParts:
    marks, ratios = torch.arange(len(logprobs)) < clipped, torch.tensor(log_ratios)
    above = marks & (ratios > 0)
    return LossParts(torch.tensor(loss), torch.tensor(logprobs), ratios, marks, above)


def test_metrics_are_means_over_the_tokens_they_were_counted_on():
    statistics = UpdateStatistics()
    statistics.add(parts(0.5, [-1.0, -2.0], [0.0, 0.0], 0), torch.tensor([-1.0, -2.2]), first=True)
    statistics.add(parts(0.25, [-1.0, -1.0], [0.3, -0.3], 1), torch.zeros(2), first=False)
    statistics.add(parts(0.0, [-1.0] * 4, [-0.3, -0.1, 0.4, 0.0], 3), torch.zeros(4), first=False)
    statistics.steps, statistics.grad_norm = 2, 3.0
    statistics.rollouts, statistics.skipped = 8, 2
    metrics = statistics.metrics(learning_rate=1e-4)
    assert metrics["policy/loss"] == pytest.approx(0.375)  # per optimiser step
    assert metrics["policy/clip_fraction"] == 4 / 8
    assert metrics["policy/clip_fraction_high"] == 2 / 8  # those at 0.3 and 0.4
    assert metrics["policy/clip_fraction_low"] == 2 / 8  # those at -0.3 and -0.1
    kl = sum(math.exp(r) - 1 - r for r in (0.3, -0.3, -0.3, -0.1, 0.4))
    assert metrics["policy/approx_kl"] == pytest.approx(kl / 8, rel=1e-4)
    assert metrics["policy/mismatch_kl"] == pytest.approx((math.exp(0.2) - 1.2) / 2, rel=1e-4)
    assert metrics["policy/mismatch_max"] == pytest.approx(0.2, rel=1e-5)
    assert metrics["policy/skipped"] == 0.25
    assert metrics["policy/grad_norm"] == 1.5
    assert metrics["policy/optimizer_steps"] == 2
    assert metrics["policy/lr"] == 1e-4


def test_clips_are_told_apart_by_the_ratio_that_was_bounded_not_by_the_tokens_own():
    statistics = UpdateStatistics()
    of_rollout = parts(0.0, [-1.0] * 4, [0.3, -0.1, -0.1, -0.05], 4)  # whose mean is above 0
    statistics.add(
        dataclasses.replace(of_rollout, clipped_above=torch.ones(4).bool()), torch.zeros(4), False
    )
    metrics = statistics.metrics(learning_rate=1e-4)
    assert (metrics["policy/clip_fraction_high"], metrics["policy/clip_fraction_low"]) == (1, 0)


def test_rollouts_have_counts_of_their_own_only_where_some_were_stopped(make_batch):
    batch = make_batch(group_sizes=(2, 1))
    assert unequal_counts(batch) is None
    batch.weights = torch.tensor([0.0, 2.0, 1.0])
    assert unequal_counts(batch).tolist() == [0, 2, 1]
    batch.weights = torch.zeros(3)  # all stopped: nothing is learned from any
    assert unequal_counts(batch).tolist() == [0, 0, 0]


def test_weights_of_tokens_are_counted_before_the_first_step_and_corrections_at_every_step():
    statistics = UpdateStatistics(corrects=True)
    gap = torch.tensor([math.log(2.0), math.log(0.5)])  # trainer over sampler
    for first in (True, False):
        same = parts(0.0, [-1.0, -1.0], [0.0, 0.0], 0)
        correction = Correction(torch.tensor([1.5, 0.5]), torch.tensor([True, False]))
        own = dataclasses.replace(same, correction=correction)
        statistics.add(own, own.logprobs - gap, first)
    metrics = statistics.metrics(learning_rate=1e-4)
    assert metrics["policy/mismatch_weight"] == pytest.approx(1.25)
    assert metrics["policy/mismatch_weight_max"] == pytest.approx(2.0)
    assert metrics["policy/mismatch_ess"] == pytest.approx(2.5**2 / (2 * 4.25))
    assert metrics["policy/mismatch_chi2"] == pytest.approx(4.25 / 2 - 1)
    assert metrics["policy/correction_weight"] == 1.0
    assert metrics["policy/correction_weight_max"] == 1.5
    assert metrics["policy/correction_ess"] == pytest.approx(4**2 / (4 * 2 * 2.5))
    assert metrics["policy/correction_cut"] == 0.5


def test_without_a_correction_nothing_is_said_about_one():
    assert not [n for n in UpdateStatistics().metrics(1e-4) if "correction" in n]


@pytest.mark.parametrize("corrects", [False, True])
def test_a_batch_that_forwards_nothing_has_finite_metrics(corrects):
    metrics = UpdateStatistics(corrects).metrics(learning_rate=1e-4)
    assert all(value == 0 for name, value in metrics.items() if name != "policy/lr")

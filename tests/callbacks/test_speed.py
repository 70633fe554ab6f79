"""Speed of a step: counted work over measured seconds."""

from types import SimpleNamespace

import pytest
import torch
from scripted import BarePolicy, Fit, StubModule, slots

from e3rl.batch import RolloutBatch, batch_from_state, batch_state
from e3rl.callbacks import speed
from e3rl.callbacks.speed import Speedometer, compute_dtype, measure_peak
from e3rl.functional.flops import MatmulSizes
from e3rl.policy.policy import Policy

SIZES = MatmulSizes(trained=10, frozen=0, head=0, head_trained=True, layers=0, query=0)


def test_a_step_counts_sampled_tokens_and_the_updates_operations() -> None:
    batch = Fit(slots()).fit().watcher.trained[0]
    batch.passes.add(torch.cat([torch.arange(1, 4), torch.arange(1, 5)]), 0)
    with torch.no_grad():
        batch.passes.add(torch.arange(1, 6), 0)
    batch.metrics["time/update_s"] = 0.5
    tokens = int(batch.tensor("completion_mask").sum())
    row = Speedometer(SIZES, peak=10_000.0).metrics(batch, step_s=2.0)
    assert row == {
        "update/tokens_trained": 7,
        "update/tokens_forwarded": 5,
        "update/flops": 7 * 60 + 5 * 20,
        "speed/tokens_per_s": tokens / 2,
        "speed/peak_flops_per_s": 10_000,
        "speed/update_flops_per_s": 1040,
        "speed/mfu": pytest.approx(0.104),
    }


def test_measuring_the_peak_draws_no_numbers_and_is_of_the_precision_of_the_passes() -> None:
    policy = Policy("random")
    weight = policy.model.get_decoder().layers[0].mlp.up_proj.weight
    before = torch.get_rng_state()
    assert measure_peak(weight, 64, torch.bfloat16) > 0
    assert torch.equal(before, torch.get_rng_state())
    assert compute_dtype(weight, policy) == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert compute_dtype(weight, policy) == torch.bfloat16
    policy.computed_in = "float16"
    assert compute_dtype(weight, policy) == torch.float16


def test_the_peak_is_the_fastest_product_after_one_that_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([0.001, 0.05, 0.02, 0.04, 0.02, 0.03, 0.01])  # five are at least a tenth
    monkeypatch.setattr(speed, "_time_product", lambda *_: next(times))
    assert measure_peak(torch.empty(3, 5), 10, torch.float32) == pytest.approx(300 / 0.02)
    assert list(times) == [0.01]


def test_a_policy_without_a_model_has_no_speed() -> None:
    module = StubModule(BarePolicy())
    assert Speedometer.of(SimpleNamespace(), module) is None  # type: ignore[arg-type]


def test_a_batch_forgets_its_passes_in_a_checkpoint() -> None:
    batch = Fit(slots()).fit().watcher.trained[0]
    batch.passes.add(torch.arange(1, 4), 0)
    again: RolloutBatch = batch_from_state(batch_state(batch))
    assert again.passes.with_gradient.tolist() == [0, 0, 0]

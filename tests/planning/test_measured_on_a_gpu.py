"""Forecasts beside what was measured on a GPU; experiments/gpu_smoke has the measurement."""

import pytest

from e3rl.planning.hours import GPUS, Passes, Sampled, update_seconds
from e3rl.planning.memory import GIB, Training, training_bytes
from e3rl.policy.shape import ModelShape


def test_the_update_of_a_run_on_an_h200_is_forecast() -> None:
    """Of 1.5 B parameters: 59.6 GiB with vLLM, and 14.7 s."""
    shape = ModelShape(
        parameters=1_543_656_960,
        layers=28,
        hidden=1536,
        intermediate=8960,
        query=1536,
        key_value=256,
        vocabulary=151_936,
    )
    training = Training(
        weight_bytes=4,
        compute_bytes=2,
        shards=1,
        bucketed=False,
        moments=2,
        tokens=2048,
        checkpointing=True,
        entropy=False,
        probe=True,
        block=512,
        fused=True,
    )
    engine = 0.25 * 139.8
    peak = sum(training_bytes(shape, training).values()) / GIB + engine
    assert peak == pytest.approx(59.64, rel=0.05)
    passes = Passes(2, 4, 1, 1, 1, 0, 1, 2048, checkpointing=True)
    found = update_seconds(shape, GPUS["h200"], passes, Sampled(256, 32, 64, 256, 256))
    assert found["total"] == found["launches"] == pytest.approx(14.7, rel=0.2)

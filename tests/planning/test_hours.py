"""Seconds from operations and bytes, worked by hand, and against published runs."""

from dataclasses import replace

import pytest

from e3rl.planning.hours import (
    GPUS,
    Decoding,
    Gpu,
    Passes,
    Sampled,
    multiplied,
    rollout_seconds,
    sync_seconds,
    update_seconds,
)
from e3rl.policy.shape import ModelShape

SHAPE = ModelShape(
    parameters=1000, layers=2, hidden=4, intermediate=8, query=4, key_value=2, vocabulary=10
)
# A share of 0.6 of the bandwidth leaves 600 bytes a second, 0.35 of the peaks 3,500 and 350.
SLOW = Gpu(half=10_000, single=1_000, bandwidth=1_000, gib=1, link=100)
WHAT = Sampled(rollouts=6, prompts=3, prompt=5, mean=10, longest=20)
HALF = Decoding(element_bytes=2, shards=1, at_once=8, eager=False)
UPDATE = Passes(
    compute_bytes=2,
    weight_bytes=4,
    shards=1,
    ranks=1,
    epochs=1,
    forwards=0,
    optimiser_steps=1,
    tokens_per_pass=25,
    checkpointing=False,
)
MULTIPLIED = 4 * (2 * (2 * 4 + 2 * 2 + 3 * 8) + 10)  # 328


def test_a_token_is_multiplied_with_blocks_and_head() -> None:
    assert multiplied(SHAPE) == MULTIPLIED


def test_sampling_reads_weights_every_step_and_the_cache_of_every_token() -> None:
    found = rollout_seconds(SHAPE, SLOW, HALF, WHAT)
    assert found["weights"] == pytest.approx(20 * 1000 * 2 / 600)  # as many steps as the longest
    assert found["cache"] == pytest.approx(60 * (5 + 5) * 16 / 600)  # 2 x 2 layers x 2 x 2 bytes
    assert found["operations"] == pytest.approx(2 * MULTIPLIED * (60 + 15) / 3500)
    assert found["launches"] == pytest.approx(20 * 0.002)
    assert found["total"] == pytest.approx(sum(found[p] for p in ("weights", "cache", "launches")))


def test_few_at_once_take_more_steps_and_more_devices_fewer_bytes_each() -> None:
    few = rollout_seconds(SHAPE, SLOW, replace(HALF, at_once=2), WHAT)
    assert few["weights"] == pytest.approx(30 * 1000 * 2 / 600)  # 60 tokens, two at once
    shared = rollout_seconds(SHAPE, SLOW, replace(HALF, shards=2), WHAT)
    assert shared["weights"] == pytest.approx(20 * 1000 * 2 / 1200)
    single = rollout_seconds(SHAPE, SLOW, replace(HALF, element_bytes=4), WHAT)
    assert single["operations"] == pytest.approx(2 * MULTIPLIED * 75 / 350)
    assert single["total"] > single["operations"] > single["weights"]  # they overlap


def test_an_eager_engine_takes_what_launching_or_computing_takes() -> None:
    fast = replace(SLOW, half=1e12, bandwidth=1e12)
    found = rollout_seconds(SHAPE, fast, replace(HALF, eager=True), WHAT)
    assert found["total"] == found["launches"] == pytest.approx(20 * 2 * 0.0004)
    slow = rollout_seconds(SHAPE, SLOW, replace(HALF, eager=True), WHAT)
    assert slow["total"] == pytest.approx(slow["weights"] + slow["cache"])


# 75 tokens with prompts once; pairs: 60 x (5 + 5) of completions and 3 x 25 / 2 of prompts
BLOCKS = 2 * (MULTIPLIED - 40) * 75 + 4 * 2 * 4 * (600 + 37.5)
HEAD = 2 * 40 * 60  # of sampled tokens


@pytest.mark.parametrize(
    ("given", "operations"),
    [
        ({}, 3 * BLOCKS + 3 * HEAD),
        ({"checkpointing": True}, 4 * BLOCKS + 3 * HEAD),
        ({"epochs": 2}, 6 * BLOCKS + 6 * HEAD),
        ({"forwards": 2}, 5 * BLOCKS + 5 * HEAD),
    ],
)
def test_an_update_takes_the_operations_of_its_passes(
    given: dict[str, int], operations: float
) -> None:
    found = update_seconds(SHAPE, SLOW, replace(UPDATE, **given), WHAT)
    assert found["total"] == found["operations"] == pytest.approx(operations / 3500)


def test_kernels_of_small_passes_wait_for_their_launches() -> None:
    small = replace(UPDATE, tokens_per_pass=1, forwards=1)
    found = update_seconds(SHAPE, replace(SLOW, half=1e9), small, WHAT)
    # 75 passes over two blocks with gradients, and 75 without in a third of the time
    assert found["total"] == found["launches"] == pytest.approx(75 * (1 + 1 / 3) * 2 * 0.014)


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    found = update_seconds(replace(SHAPE, adapters=9), SLOW, UPDATE, WHAT)
    assert found["operations"] == pytest.approx((2 * BLOCKS + 3 * HEAD) / 3500)


def test_shared_weights_are_gathered_beneath_and_whole_gradients_added_up_afterwards() -> None:
    shared = update_seconds(SHAPE, SLOW, replace(UPDATE, shards=4, ranks=4), WHAT)
    assert shared["gathers"] == pytest.approx(3 * (75 / 25) * 1000 * 2 / 100)
    assert shared["total"] == max(shared["operations"], shared["gathers"])
    whole = update_seconds(SHAPE, SLOW, replace(UPDATE, ranks=4, optimiser_steps=2), WHAT)
    assert whole["sums"] == pytest.approx(2 * 2 * 1000 * 4 / 100)
    assert whole["total"] == pytest.approx(whole["operations"] + whole["sums"])


def test_a_sync_gathers_shared_weights_and_writes_the_engines() -> None:
    assert sync_seconds(SHAPE, SLOW, UPDATE, 2) == pytest.approx(1000 * (4 + 2) / 1000)
    shared = sync_seconds(SHAPE, SLOW, replace(UPDATE, shards=2), 2)
    assert shared == pytest.approx(1000 * 6 / 1000 + 1000 * 4 / 100)


def test_gpus_compute_faster_in_half_precision_and_fit_a_model() -> None:
    for gpu in GPUS.values():
        assert gpu.single < gpu.half < 1e16
        assert 1e11 < gpu.link < 1e12 or gpu.link == 32e9
        assert 20 <= gpu.gib <= 200

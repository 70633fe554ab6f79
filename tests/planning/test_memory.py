"""Bytes of weights, gradients, activations, logits and caches, worked by hand."""

from dataclasses import replace
from typing import Any

import pytest

from e3rl.planning.memory import (
    Training,
    block_bytes,
    resident_bytes,
    training_bytes,
    transformers_memory,
    update_moments,
    vllm_memory,
)
from e3rl.policy.shape import ModelShape

SHAPE = ModelShape(
    parameters=1000, layers=2, hidden=4, intermediate=8, query=4, key_value=2, vocabulary=10
)
MIXED = Training(  # bfloat16 compute over float32 weights, whole copies on several devices
    weight_bytes=4,
    compute_bytes=2,
    shards=1,
    bucketed=True,
    moments=2,
    tokens=3,
    checkpointing=True,
    entropy=False,
    probe=False,
)
WEIGHTS = 4 * (2 * 4 + 2 * 2 + 3 * 8 + 2)  # 152 of a block, its norms among them
REST = 1000 - 2 * WEIGHTS
# A token of a block: norms, inputs of products, queries and keys, inner width; see `block_bytes`.
KEPT = 2 * 4 * 8 + 5 * 4 * 2 + 2 * (4 + 2) * 2 + 4 * 8 * 2


def parts_of(moment: str, **given: Any) -> dict[str, int]:
    shape = replace(SHAPE, adapters=given.pop("adapters", 0))
    return update_moments(shape, replace(MIXED, **given))[moment]


def test_an_update_in_mixed_precision_with_whole_copies() -> None:
    assert parts_of("loss") == {
        "weights": 4000,
        "gradients": 4000,  # DDP's buckets
        "optimiser states": 8000,
        "weights as computed": 10 * 4 * 2,  # the head, cast
        "activations": 3 * (2 * 4 * 4 + 4 * (4 + 4 + 2)),  # inputs of blocks, and the last norm's
        "logits": 3 * 10 * (2 * 2 + 2 * 4),
    }
    assert parts_of("backward") == {
        "weights": 4000,
        "gradients": 4000 + 10 * 4 * 4,  # the head's
        "optimiser states": 8000,
        "weights as computed": WEIGHTS * 2,  # of the block that is computed again
        "activations": 3 * (2 * 4 * 4 + KEPT + 2 * 8 * 2),
        "logits": 0,
    }
    assert parts_of("end")["gradients"] == parts_of("step")["gradients"] == 8000
    assert parts_of("step")["optimiser states"] == 12000  # and square roots
    assert parts_of("step", fused=True)["optimiser states"] == 8000
    assert training_bytes(SHAPE, MIXED) == parts_of("step")
    assert resident_bytes(SHAPE, MIXED) == 4000 + 8000 + 8000


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, 26 * 4 + 4 * 4 + 4 * 2 + 8 * 8),
        ({"compute_bytes": 4}, 24 * 4 + 8 * 4 + 8 * 2 + 16 * 8),
        ({"shards": 4}, 16 * 4 + 4 * 4 + 4 * 2 + 8 * 8),
    ],
)
def test_what_a_block_keeps_of_a_token(given: dict[str, int], kept: int) -> None:
    assert block_bytes(SHAPE, replace(MIXED, **given)) == kept
    assert parts_of("loss", checkpointing=False, **given)["activations"] >= 3 * 2 * kept


def test_shards_divide_what_belongs_to_the_weights_alone() -> None:
    found = parts_of("end", shards=4, bucketed=False)
    assert [found[part] for part in ("weights", "gradients", "optimiser states")] == [
        *(1000, 1000 + REST * (2 + 4), 2000),  # what is in no block is shared out last
    ]
    # What is in no block, and two blocks, whatever the precision of weights.
    assert found["weights as computed"] == 2 * (REST + 2 * WEIGHTS)
    whole = parts_of("end", shards=4, bucketed=False, compute_bytes=4)
    assert whole["weights as computed"] == 4 * (REST + 2 * WEIGHTS)
    first = parts_of("backward", shards=4, bucketed=False)
    assert first["gradients"] == 2 * (40 + WEIGHTS)
    assert parts_of("loss", shards=4)["logits"] == parts_of("loss")["logits"]


def test_weights_that_compute_as_they_are_have_no_second_copy() -> None:
    for moment in update_moments(SHAPE, replace(MIXED, compute_bytes=4)).values():
        assert moment["weights as computed"] == 0


def test_without_checkpointing_every_block_keeps_its_own_and_what_was_cast_for_it() -> None:
    found = parts_of("backward", checkpointing=False)
    assert found["activations"] == 3 * (2 * KEPT + 2 * 8 * 2)
    assert found["weights as computed"] == 2 * 2 * WEIGHTS


@pytest.mark.parametrize(
    ("entropy", "probe", "copies"), [(True, False, 5), (False, True, 3), (True, True, 5)]
)
def test_entropies_of_the_whole_vocabulary_cost_copies_of_the_logits(
    entropy: bool, probe: bool, copies: int
) -> None:
    found = parts_of("loss", entropy=entropy, probe=probe)
    assert found["logits"] == 3 * 10 * (2 * 2 + copies * 4)


@pytest.mark.parametrize(
    ("given", "logits"),
    [
        ({}, 2 * 10 * (2 + 2 * 4) + 10 * 4 * 4),  # two tokens, and the gradient of the head
        ({"entropy": True}, 2 * 10 * (2 + 2 * 4) + 10 * 4 * 4),
        ({"probe": True}, 2 * 10 * (2 + 3 * 4) + 10 * 4 * 4),
        ({"block": 99}, 3 * 10 * (2 + 2 * 4) + 10 * 4 * 4),
        ({"head_bytes": 4}, 2 * 10 * (4 + 2 * 4) + 10 * 4 * 4),
        ({"head_bytes": 4, "weight_bytes": 2}, 2 * 10 * (4 + 2 * 4) + 10 * 4 * (4 + 4)),
    ],
)
def test_a_chunked_head_takes_a_blocks_logits_and_a_gradient(
    given: dict[str, int], logits: int
) -> None:
    assert parts_of("loss", **({"block": 2} | given))["logits"] == logits


def test_a_float32_head_makes_logits_twice_as_large_and_raises_none() -> None:
    # Which are raised no more: one copy less.
    assert parts_of("loss", head_bytes=4)["logits"] == 3 * 10 * (4 + 8)


def test_adapters_are_float32_and_all_that_has_gradients() -> None:
    found = parts_of("end", adapters=100, shards=2, weight_bytes=2)
    parts = ("weights", "gradients", "optimiser states", "weights as computed")
    # DDP's buckets and gradients; of two blocks all are gathered at once
    assert [found[part] for part in parts] == [1000 + 200, 400, 400, 2000]
    assert parts_of("backward", adapters=100)["gradients"] == 400  # buckets alone


@pytest.mark.parametrize(
    ("tensor_parallel", "share", "cache", "weights", "room", "tokens"),
    [
        (1, 2160, 0, 2000, 160, 10),  # 2 layers x 2 x 2 elements x 2 bytes = 16 per token
        (2, 1160, 0, 1000, 160, 20),
        (1, 1900, 0, 2000, 0, 0),  # less than the weights
        (1, None, 320, 2000, 320, 20),
    ],
)
def test_vllm_fills_its_share_beside_its_weights_with_a_cache(
    tensor_parallel: int, share: int | None, cache: int, weights: int, room: int, tokens: int
) -> None:
    found = vllm_memory(SHAPE, 2, tensor_parallel, share, cache)
    assert (found.weights, found.cache, found.cache_tokens) == (weights, room, tokens)
    assert found.total == weights + room


def test_transformers_has_the_cache_of_one_call_and_no_weights_of_its_own() -> None:
    found = transformers_memory(SHAPE, 4, tokens=7)
    assert (found.weights, found.cache, found.cache_tokens) == (0, 7 * 32, 7)

"""Bytes of weights, gradients, activations, logits and caches, worked by hand."""

from dataclasses import replace

import pytest

from e3rl.planning.memory import Training, training_bytes, transformers_memory, vllm_memory
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
BLOCK = 4 * 4 + 2 * 4 + 2 * 2 + 4 * 8  # elements per token that a block keeps


def test_an_update_in_mixed_precision_with_whole_copies() -> None:
    assert training_bytes(SHAPE, MIXED) == {
        "weights": 4000,
        "gradients": 8000,
        "optimiser states": 8000,
        "weights as computed": 2000,
        "activations": 3 * 2 * (2 * 4 + BLOCK),
        "logits": 3 * 10 * (2 * 2 + 2 * 4),
    }


def test_shards_divide_what_belongs_to_the_weights_alone() -> None:
    found = training_bytes(SHAPE, replace(MIXED, shards=4, bucketed=False))
    whole = training_bytes(SHAPE, MIXED)
    assert [found[part] for part in ("weights", "gradients", "optimiser states")] == [
        *(1000, 1000, 2000),
    ]
    # All but layers - 2 blocks of 4 x (2 x 4 + 2 x 2 + 3 x 8), whatever the precision of weights.
    deeper = training_bytes(replace(SHAPE, layers=5), replace(MIXED, shards=4, bucketed=False))
    assert found["weights as computed"] == 2000
    assert deeper["weights as computed"] == 2 * (1000 - 3 * 144)
    as_stored = replace(MIXED, shards=4, bucketed=False, compute_bytes=4)
    assert training_bytes(SHAPE, as_stored)["weights as computed"] == 4000
    assert [found[part] for part in ("activations", "logits")] == [
        whole[part] for part in ("activations", "logits")
    ]


def test_weights_that_compute_as_they_are_have_no_second_copy() -> None:
    assert training_bytes(SHAPE, replace(MIXED, compute_bytes=4))["weights as computed"] == 0


def test_without_checkpointing_every_block_keeps_its_own() -> None:
    found = training_bytes(SHAPE, replace(MIXED, checkpointing=False))
    assert found["activations"] == 3 * 2 * 2 * BLOCK


@pytest.mark.parametrize(
    ("entropy", "probe", "copies"), [(True, False, 5), (False, True, 3), (True, True, 5)]
)
def test_entropies_of_the_whole_vocabulary_cost_copies_of_the_logits(
    entropy: bool, probe: bool, copies: int
) -> None:
    found = training_bytes(SHAPE, replace(MIXED, entropy=entropy, probe=probe))
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
    settings = replace(MIXED, **({"block": 2} | given))
    assert training_bytes(SHAPE, settings)["logits"] == logits


def test_a_float32_head_makes_logits_twice_as_large() -> None:
    assert training_bytes(SHAPE, replace(MIXED, head_bytes=4))["logits"] == 3 * 10 * (2 * 4 + 8)


def test_adapters_are_float32_and_all_that_has_gradients() -> None:
    found = training_bytes(replace(SHAPE, adapters=100), replace(MIXED, shards=2, weight_bytes=2))
    parts = ("weights", "gradients", "optimiser states", "weights as computed")
    # of two blocks all are gathered at once: 2 x 1000
    assert [found[part] for part in parts] == [1000 + 200, 400, 400, 2000]


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

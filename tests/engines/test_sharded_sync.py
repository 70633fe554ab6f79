"""Sync of policies that are sharded over two gloo ranks (FSDP2 on the CPU)."""

import importlib.util
from typing import Any

import pytest
import torch
from sharded_policies import look, on_two_ranks, sample

from e3rl.engines.vllm_build import INSTALL
from e3rl.engines.whole_copy import WholeCopy
from e3rl.policy.policy import Policy

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_two_ranks(look, tmp_path_factory.mktemp("ranks"))


def test_every_rank_sends_whole_weights_and_holds_half_of_them(ranks, policy):
    names = [name for name, _ in policy.model.named_parameters()]
    total = sum(p.numel() for p in policy.model.parameters())
    for found in ranks:
        assert found["shapes"] == {n: tuple(p.shape) for n, p in policy.model.named_parameters()}
        assert list(found["sent"]) == names
        for name, weight in found["sent"].items():
            assert torch.equal(weight, found["kept"][name]), name
    assert sum(found["local"] for found in ranks) == total
    assert max(found["local"] for found in ranks) < 0.6 * total


def test_one_parameter_at_a_time_is_whole(ranks, policy):
    largest = max(p.numel() for p in policy.model.parameters())
    assert [found["at_once"] for found in ranks] == [largest, largest]


def test_a_tied_head_is_gathered_under_its_own_name(ranks):
    for found in ranks:
        for name in ("lm_head.weight", "model.embed_tokens.weight"):
            assert torch.equal(found["tied"][name], found["embedding"])


def test_a_shard_that_is_not_finite_stops_all_ranks_with_one_message(ranks):
    first, second = (found["not_finite"] for found in ranks)
    assert first == second
    name = "model.layers.1.mlp.up_proj.weight"
    assert first.startswith(f"FloatingPointError: weights of {name} are not finite at policy")


def test_a_rank_that_cannot_load_goes_on_gathering_and_all_raise(ranks):
    assert ranks[0]["half_way"] == "ValueError: no room"
    expected = "OtherRankError: rank 0 did not take the weights: ValueError('no room')"
    assert ranks[1]["half_way"] == expected


def test_transformers_on_each_rank_samples_with_a_whole_copy_that_follows(ranks):
    for found in ranks:
        before, after, stale = found["transformers"]
        assert max(before, after) < 1e-4
        assert stale > 1e-2


def test_a_whole_copy_has_the_biases_of_a_router(ranks):
    assert max(found["experts"] for found in ranks) < 1e-4


def test_making_the_whole_copy_draws_nothing_from_the_runs_generators(ranks):
    assert [found["randomness_stays"] for found in ranks] == [True, True]


def test_a_whole_copy_in_bfloat16_keeps_the_precision_of_what_is_no_weight():
    policy = Policy(dtype="bfloat16")
    fresh = WholeCopy(policy).policy.model
    assert {p.dtype for p in fresh.parameters()} == {torch.bfloat16}
    own = dict(policy.model.named_buffers())
    assert any("inv_freq" in name for name in own)
    for name, buffer in fresh.named_buffers():
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, own[name]), name


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason=f"no vLLM: {INSTALL}")
def test_vllm_on_each_rank_follows_a_sharded_policy_and_is_rebuilt_on_all_of_them(tmp_path):
    ranks = on_two_ranks(sample, tmp_path)
    for number, found in enumerate(ranks):
        assert max(found["gaps"]) < 1e-4
        assert found["stale"] > 1e-2
        assert found["rebuilt"] == [number]
        assert found["group_survives"] == 2
        assert found["unequal"].startswith(
            "ValueError: engine.settings.tensor_parallel_size=3 with 2 ranks: as many ranks share"
        )
        assert max(found["shared"]["gaps"]) < 1e-4
        assert found["shared"]["own"] == [True, True]

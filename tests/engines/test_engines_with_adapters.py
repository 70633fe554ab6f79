"""Policies with adapters are sampled from as they are, by every engine."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from e3rl.engines.base import RolloutEngine
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.vllm import VLLMEngine
from e3rl.policy.adapters import LoRA
from e3rl.policy.policy import Policy
from engine_requests import largest_gap, many

if importlib.util.find_spec("peft") is None:
    pytest.skip("peft is not installed: pip install 'e3rl[lora]'", allow_module_level=True)

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
has_vllm = importlib.util.find_spec("vllm") is not None
VLLM = pytest.param("vllm", marks=pytest.mark.skipif(not has_vllm, reason="vLLM is not installed"))


@pytest.fixture(params=["transformers", VLLM])
def engine(request) -> Iterator[RolloutEngine]:
    kinds = {"transformers": TransformersEngine, "vllm": VLLMEngine}
    made = kinds[request.param](progress=False)
    yield made
    made.close()


def test_rollouts_follow_the_adapters_from_sync_to_sync(engine):
    torch.manual_seed(0)
    policy = Policy(lora=LoRA(r=2, alpha=4))
    before = {name: value.clone() for name, value in policy.named_parameters()}
    engine.sync(policy, version=0)
    first = list(engine.generate(many(policy)))
    assert largest_gap(policy, first) < 1e-4
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    assert largest_gap(policy, first) > 0.01
    engine.sync(policy, version=1)
    assert largest_gap(policy, engine.generate(many(policy))) < 1e-4
    frozen = {name: p for name, p in policy.named_parameters() if not p.requires_grad}
    assert all(torch.equal(p, before[name]) for name, p in frozen.items())

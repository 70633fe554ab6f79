"""Small random models of other families in the place of the embedded policy's."""

import copy
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from e3rl.policy.policy import Policy

SMALL: dict[str, Any] = {
    "vocab_size": 34,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "pad_token_id": 0,
}


def with_model(policy: Policy, family: str, attention: str = "sdpa", **settings: Any) -> Policy:
    """The policy with a small random model of another family."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **(SMALL | settings))
    other = copy.deepcopy(policy)
    other.model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    other._adjustment, other._sharing = None, None
    return other


def with_router_biases(policy: Policy) -> Policy:
    """The policy with a small mixture of experts, whose router has biases (buffers) of its own."""
    other = with_model(
        policy,
        "glm4_moe",
        n_routed_experts=8,
        num_experts_per_tok=2,
        moe_intermediate_size=8,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=0,
    )
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in other.model.parameters():
            weight.mul_(8 if weight.ndim > 1 else 1)
        for name, bias in other.model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                bias.normal_(generator=noise)
    return other

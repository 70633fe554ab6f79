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


def with_model(policy: Policy, family: str, **settings: Any) -> Policy:
    """The policy with a small random model of another family."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(family, **(SMALL | settings))
    other = copy.deepcopy(policy)
    other.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    other._adjustment, other._sharing = None, None
    return other

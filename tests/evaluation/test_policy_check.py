"""Positions that models were made for, as their configurations tell."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from transformers import GPT2Config, Qwen2Config, T5Config

from e3rl.config.composition import ConfigurationError
from e3rl.evaluation.policy_check import check_positions, context_length


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        (None, 4096),
        ({"rope_type": "default", "rope_theta": 1e6}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}, 16384),
        ({"rope_type": "linear", "factor": 0.5, "rope_theta": 1e6}, 4096),
        # What was there before is named: the positions are those after (Llama 3.1, gpt-oss), or
        # are still those before (Qwen 2.5 with yarn).
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 128}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"type": "longrope", "factor": 32.0}, 4096),
    ],
)
def test_stretched_rotary_embeddings_lengthen_a_context(rope: dict | None, length: int) -> None:
    config = Qwen2Config(max_position_embeddings=4096)
    config.rope_parameters = rope
    assert context_length(config) == length
    config.rope_parameters = {"full_attention": rope, "sliding_attention": None}
    assert context_length(config) == length


def test_other_names_are_read_and_none_is_no_limit() -> None:
    assert context_length(GPT2Config(n_positions=512)) == 512
    assert context_length(T5Config()) is None  # relative positions


def test_the_longest_rollout_may_fill_all_positions_and_no_more() -> None:
    cfg = OmegaConf.create({"max_new_tokens": 80, "policy": {"path": "small"}})
    small: Any = SimpleNamespace(model=SimpleNamespace(config=GPT2Config(n_positions=100)), path="")
    check_positions(cfg, small, 20)
    with pytest.raises(ConfigurationError, match=r"small: .* the 100 positions .*=79 or"):
        check_positions(cfg, small, 21)
    with pytest.raises(ConfigurationError, match="model was made for; leave out long prompts"):
        check_positions(cfg, small, 100)
    without: Any = SimpleNamespace(model=SimpleNamespace(config=T5Config()), path="")
    check_positions(cfg, without, 10**6)

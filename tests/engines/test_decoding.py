"""Token by token decoding gives the logits of whole passes, whatever rows leave and when."""

import pytest
import torch

from e3rl.engines import decoding as module
from e3rl.engines.base import RolloutRequest
from e3rl.engines.decoding import Decoding
from e3rl.engines.transformers import TransformersEngine
from engine_requests import largest_gap, many
from small_models import with_model

pytestmark = pytest.mark.end_to_end


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text", "mistral"])
@pytest.mark.parametrize("room", [1, 3, 32])
def test_logits_are_those_of_whole_passes(policy, monkeypatch, family, room):
    monkeypatch.setattr(module, "ROOM", room)
    own = with_model(policy, family)
    assert own.sharing is not None
    prompts = [(5, 6, 7), (5, 6, 7), (8, 9), (8, 9), (4,)]
    texts = [list(prompt) for prompt in prompts]
    noise = torch.Generator().manual_seed(0)
    decoding = Decoding(own, [RolloutRequest(i, 0, p, 1.0, i, 9) for i, p in enumerate(prompts)])
    for step in range(9):
        for text, logits in zip(texts, decoding.logits, strict=True):
            wanted = own.model(torch.tensor([text])).logits[0, -1]
            torch.testing.assert_close(logits, wanted, atol=1e-4, rtol=1e-4)
        if step in (2, 5):
            kept = torch.tensor([0, 2, 3] if step == 2 else [2, 0])
            decoding.keep(kept)
            texts = [texts[row] for row in kept]
        tokens = torch.randint(3, 30, (len(texts),), generator=noise)
        for text, token in zip(texts, tokens.tolist(), strict=True):
            text.append(token)
        decoding.step(tokens)


LINEAR = {  # of qwen3_next
    **{"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 2},
    **{"linear_key_head_dim": 4, "linear_value_head_dim": 4, "num_experts": 4},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8},
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3_next", LINEAR),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}),
        ("bamba", MAMBA | {"attn_layer_indices": [1]}),
    ],
)
def test_states_that_the_cache_holds_follow_rows_that_go_on(policy, family, settings):
    own = with_model(policy, family, **settings)
    engine = TransformersEngine(progress=False)
    engine.sync(own, 0)
    assert largest_gap(own, engine.generate(many(own, limit=12))) < 1e-4


@pytest.mark.parametrize("family", ["recurrent_gemma", "mamba", "rwkv"])
def test_models_with_states_outside_of_the_cache_are_refused_by_name(policy, family):
    settings = {"attention_hidden_size": 16} if family == "rwkv" else {}
    own = with_model(policy, family, attention="eager", **settings)
    engine = TransformersEngine(progress=False)
    with pytest.raises(ValueError, match=rf"{type(own.model).__name__}: .* use engine=vllm"):
        engine.sync(own, 0)

"""Small GGUF files of random Llamas, as llama.cpp's converter writes them."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

HEADS, KEY_VALUE_HEADS = 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ a", "Ċ Ċ", "Ġ Ġ"]
TOKENS = [*SPECIAL, *bytes_to_unicode().values(), *(m.replace(" ", "") for m in MERGES)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.layers": "blk",
}


def random_llama(seed: int = 0) -> Any:
    """A Llama with tied embeddings whose matrices are what 8 bits a weight can hold."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                packed = gguf.quantize(parameter.numpy(), gguf.GGMLQuantizationType.Q8_0)
                plain = gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)
                parameter.copy_(torch.from_numpy(plain))
    return model


def write_gguf(path: Path, model: Any, without: str = "", pre: str = "smollm") -> Path:
    """A Llama in 8 bits a weight, but for the tensors whose names contain `without`."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license("apache-2.0")
    writer.add_context_length(model.config.max_position_embeddings)
    writer.add_embedding_length(model.config.hidden_size)
    writer.add_block_count(model.config.num_hidden_layers)
    writer.add_feed_forward_length(model.config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_VALUE_HEADS)
    writer.add_layer_norm_rms_eps(model.config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, parameter in model.named_parameters():
        if not without or without not in name:
            _add_tensor(writer, name, parameter.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(writer: gguf.GGUFWriter, name: str, value: np.ndarray) -> None:
    """A matrix in 8 bits, a vector in 32, under llama.cpp's name."""
    if "q_proj" in name or "k_proj" in name:  # its rotary pairs are neighbours, not half a head off
        heads = HEADS if "q_proj" in name else KEY_VALUE_HEADS
        halves = value.reshape(heads, 2, -1, value.shape[1])
        value = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
    for theirs, ours in NAMES.items():
        name = name.replace(theirs, ours)
    if value.ndim == 1:
        writer.add_tensor(name, value)
        return
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor(name, gguf.quantize(value, kind), raw_dtype=kind)

"""Tokenizers and causal language models from folders and hubs, as a policy needs them."""

from typing import Any

import torch
from torch import nn

from e3rl.policy.own_parts import without_storage
from e3rl.policy.weight_files import Files, find_file, find_files

GENERIC_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # all in tokenizer.json


def load_tokenizer(path: str, trust_remote_code: bool) -> Any:
    """Raises ValueError for a tokenizer without an end token."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    # For some families AutoTokenizer puts the family's own tokenizer in the place of any other,
    # so that a Qwen2 with, say, single characters as tokens would be split by Qwen2's rules.
    saved = get_tokenizer_config(path, trust_remote_code=trust_remote_code)
    generic = saved.get("tokenizer_class") in GENERIC_TOKENIZERS and "auto_map" not in saved
    loader = PreTrainedTokenizerFast if generic else AutoTokenizer
    tokenizer = loader.from_pretrained(path, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise ValueError(
            f"the tokenizer of {path} has no end-of-sequence token, so completions cannot end: "
            "set `eos_token` in its tokenizer_config.json"
        )
    return tokenizer


def load_model(
    path: str,
    dtype: torch.dtype,
    attention: str,
    trust_remote_code: bool,
    random_weights: bool = False,
    in_parts: bool = False,
) -> tuple[Any, Files | None]:
    """A causal LM with its dropout off, and the files of what is still to be read of its weights.

    Args:
        path: a folder or a hub's name.
        dtype, attention, trust_remote_code: see `Policy`.
        random_weights: from the configuration only.
        in_parts: leave the weights to be read, where the files are such as can be read in parts.
    """
    from transformers import AutoModelForCausalLM

    config, options = _load_config(path, dtype, attention, trust_remote_code)
    if random_weights:
        return AutoModelForCausalLM.from_config(config, **options), None
    if in_parts:
        model = _make_without_weights(path, config, options)
        if files := find_files(path, model):
            return model, files
    return AutoModelForCausalLM.from_pretrained(path, config=config, **options), None


def load_without_weights(
    path: str, dtype: torch.dtype, attention: str, trust_remote_code: bool
) -> Any:
    """A causal LM whose parameters have shapes and names, but no storage; see `load_model`."""
    return _make_without_weights(path, *_load_config(path, dtype, attention, trust_remote_code))


def _make_without_weights(path: str, config: Any, options: dict[str, Any]) -> Any:
    """As transformers loads it, but for the values of parameters, which have no storage yet."""
    from transformers import AutoModelForCausalLM, GenerationConfig

    with without_storage():
        model = AutoModelForCausalLM.from_config(config, **options)
    if find_file(path, "generation_config.json") is not None:
        model.generation_config = GenerationConfig.from_pretrained(path)
    return model.eval()


def _load_config(
    path: str, dtype: torch.dtype, attention: str, trust_remote_code: bool
) -> tuple[Any, dict[str, Any]]:
    """A model's configuration, and what it is to be made with."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    for name, value in vars(config.get_text_config()).items():
        noisy = "dropout" in name or name.endswith(("pdrop", "layerdrop"))
        if isinstance(value, float) and noisy:
            setattr(config.get_text_config(), name, 0.0)
    return config, {
        "dtype": dtype,
        "attn_implementation": attention,
        "trust_remote_code": trust_remote_code,
    }


def set_checkpointing(model: Any, on: bool) -> None:
    """Whether activations are recomputed; in train mode is only what recomputes them."""
    model.eval()
    if on:
        # Saving and restoring generators would race with an engine that samples meanwhile.
        noisy = _has_dropout(model)
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": noisy})
        # In train mode transformers recomputes, and is silent about it in eval mode; but there
        # routers jitter and layers are left out too, so what lies within stays in eval mode.
        for module in _recomputing(model):
            module.training = True


def _recomputing(model: Any) -> list[nn.Module]:
    """The modules that look at their own mode for whether to recompute: layers, or, in code of a
    hub that has none of transformers' kind, whatever says that it can."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    modules: list[nn.Module] = list(model.modules())
    layers = [isinstance(module, GradientCheckpointingLayer) for module in modules]
    able = layers if any(layers) else [hasattr(m, "gradient_checkpointing") for m in modules]
    return [module for module, can in zip(modules, able, strict=True) if can]


def _has_dropout(model: Any) -> bool:
    """Whether a forward pass in train mode draws random numbers."""
    rates = (value for name, value in vars(model.config).items() if "drop" in name)
    return any(isinstance(rate, float) and rate > 0 for rate in rates)

"""The shape of a causal language model, from its configuration alone: no weights are loaded."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from e3rl.functional.flops import MatmulSizes
from e3rl.policy.adapters import ADAPTER, LoRA
from e3rl.policy.policy import Policy, resolve_path

# Configurations of the presets' models, so that planning needs no network.
KNOWN: dict[str, dict[str, Any]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": {
        "model_type": "qwen2",
        "num_hidden_layers": 28,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "tie_word_embeddings": False,
    },
    "smollm2": {
        "model_type": "llama",
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}


@dataclass(frozen=True)
class ModelShape:
    """What costs of a dense decoder follow from; sizes in numbers of elements."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    query: int  # heads x width of a head
    key_value: int  # of keys, and again of values
    vocabulary: int
    adapters: int = 0  # trained in place of the parameters, where there are any

    @staticmethod
    def of_policy(policy: Policy) -> "ModelShape":
        return ModelShape._of(policy.model)

    @property
    def trained(self) -> int:
        """Parameters that have gradients and optimiser states."""
        return self.adapters or self.parameters

    @staticmethod
    def of_path(
        path: str,
        config: str | None = None,
        trust_remote_code: bool = False,
        lora: LoRA | None = None,
    ) -> "ModelShape":
        """Of what `policy.path` names, counted on a model without storage.

        Args:
            path: "embedded", "random", a local folder, or a hub name; those of the presets are
                known, other names are asked of the hub.
            config: a `config.json` that is read instead.
            trust_remote_code: run code that a hub repository brings along.
            lora: adapters that it is going to get.

        Raises OSError where no configuration is found, ValueError where it is none that is known.
        """
        from transformers import AutoConfig, AutoModelForCausalLM

        if config is not None and not Path(config).is_file():
            raise FileNotFoundError(f"{config} is no file")
        if config is None and path in KNOWN:
            found = AutoConfig.for_model(**KNOWN[path])
        else:
            source = config or resolve_path(path)
            found = AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(found, trust_remote_code=trust_remote_code)
        adapters = 0 if lora is None else lora.parameters(model)
        return replace(ModelShape._of(model), adapters=adapters)

    @staticmethod
    def _of(model: Any) -> "ModelShape":
        config = model.config.get_text_config()
        heads, hidden = config.num_attention_heads, config.hidden_size
        head_dim = getattr(config, "head_dim", None) or hidden // heads
        sizes = {name: p.numel() for name, p in model.named_parameters()}
        adapters = sum(size for name, size in sizes.items() if ADAPTER in name)
        return ModelShape(
            parameters=sum(sizes.values()) - adapters,
            adapters=adapters,
            layers=config.num_hidden_layers,
            hidden=hidden,
            intermediate=getattr(config, "intermediate_size", None) or 4 * hidden,
            query=heads * head_dim,
            key_value=(getattr(config, "num_key_value_heads", None) or heads) * head_dim,
            vocabulary=config.vocab_size,
        )


def matmul_sizes(policy: Policy) -> MatmulSizes:
    """What the operations of a pass over a policy follow from; whole sizes where it is sharded."""
    shape = ModelShape.of_policy(policy)
    head = policy.model.get_output_embeddings().weight
    looked_up = {
        id(parameter)
        for module in policy.model.modules()
        if isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters()
    }
    sizes = {True: 0, False: 0}
    for parameter in policy.model.parameters():
        if parameter.ndim > 1 and parameter is not head and id(parameter) not in looked_up:
            sizes[parameter.requires_grad] += parameter.numel()
    return MatmulSizes(
        trained=sizes[True],
        frozen=sizes[False],
        head=shape.hidden * shape.vocabulary,
        head_trained=head.requires_grad,
        layers=shape.layers,
        query=shape.query,
    )

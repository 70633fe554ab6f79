"""How a policy's output layer is run, and what models are known to make of its products."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from e3rl.functional.head import Adjustment

HeadMode = Literal["full", "chunked"]
HeadDtype = Literal["compute", "float32"]


@dataclass(frozen=True)
class HeadSettings:
    """How log-probs and entropies are made from the output layer.

    Args:
        mode: "full" makes all logits of a micro-batch, (M, V), and keeps copies of them for the
            backward pass; "chunked" makes those of a few tokens at a time, in the backward pass
            again, so that memory does not grow with the micro-batch.
        block: tokens at a time, for "chunked".
        dtype: what the logits are sums of products in. "compute": the precision of the weights or
            of autocast, so bfloat16 logits there; "float32": hidden states and weights are raised
            to it first (torch.set_float32_matmul_precision decides about TF32 on GPUs). Whatever
            is chosen, softmax and sums over the vocabulary are float32.
    """

    mode: HeadMode = "full"
    block: int = 512
    dtype: HeadDtype = "compute"

    def __post_init__(self) -> None:
        for name, kind in (("mode", HeadMode), ("dtype", HeadDtype)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"policy.head.{name}={getattr(self, name)!r}: choose one of {get_args(kind)}"
                )
        if self.block < 1:
            raise ValueError(f"policy.head.block={self.block}: use at least 1 token")

    @property
    def is_plain(self) -> bool:
        """Whether the model's own forward pass would do."""
        return self.mode == "full" and self.dtype == "compute"

    def product_dtype(self, weight: Tensor) -> torch.dtype:
        """What products with `weight` are formed in."""
        if self.dtype == "float32":
            return torch.promote_types(weight.dtype, torch.float32)
        kind = weight.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def adjustments(config: Any) -> Iterator[Adjustment]:
    """What a model of this configuration may make of its output layer's products."""
    yield Adjustment()
    for name in ("logit_scale", "logits_scaling", "lm_head_multiplier"):
        if scale := getattr(config, name, None):
            yield Adjustment(factor=scale)
            yield Adjustment(divisor=scale)
    for name in ("final_logit_softcapping", "logits_soft_cap"):
        if cap := getattr(config, name, None):
            yield Adjustment(softcap=cap)


@torch.no_grad()
def find_adjustment(model: Any, token: int) -> Adjustment | None:
    """What a model makes of its output layer's products, seen on `token` or one that it knows;
    None where that is unknown here."""
    config = model.config.get_text_config()
    device = next(model.parameters()).device
    probe = torch.full((1, 4), min(token, config.vocab_size - 1), device=device)
    whole = model(input_ids=probe, use_cache=False).logits
    hidden = model.get_decoder()(input_ids=probe, use_cache=False).last_hidden_state
    products = model.get_output_embeddings()(hidden)
    return next((a for a in adjustments(config) if torch.equal(a(products), whole)), None)

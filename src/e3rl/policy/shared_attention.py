"""Attention of transformers' models over rollouts that share their prompts.

Registered with transformers under a name of its own. Without a layout it is its attention by
`torch.nn.functional.scaled_dot_product_attention`, so a model may have it for everything.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from e3rl.functional.shared_prompts import SharedPrompts, share_prompts, take

NAME = "e3rl_shared_prompts"
PLAIN = "sdpa"  # what it is without a layout
# Of the gap below, relative: some hundred times what a precision rounds at.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5}
COARSE = 0.05  # of half precisions
KNOWN = {"full_attention", "sliding_attention"}  # layer types of transformers
log = logging.getLogger(__name__)


def attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    shared_prompts: SharedPrompts | None = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Queries (1, H, S, D), keys and values (1, H', S, D) of a layout's tokens -> (1, S, H, D).

    Prompts attend to themselves, completions to their prompt and to themselves. `attention_mask`
    is transformers', for calls without a layout.
    """
    if shared_prompts is None and is_one_token_of_groups(query, key, settings):
        return attend_in_groups(query, key, value, attention_mask, scaling), None
    if shared_prompts is None:
        plain: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **settings
        )
        return plain
    layout, end = shared_prompts, shared_prompts.prompt_tokens
    laid = [x[0].transpose(0, 1).contiguous() for x in (query, key, value)]  # (S, heads, D)
    prompts = [layout.prompts.spread(x[:end]) for x in laid]  # (P, L, heads, D)
    out = layout.prompts.collect(_attention(prompts, None, scaling))
    if layout.completions is not None:
        queries, keys, values = (layout.completions.spread(x[end:]) for x in laid)
        keys, values = (
            torch.cat([take(of_prompt, layout.prompt_of), own], dim=1)
            for of_prompt, own in ((prompts[1], keys), (prompts[2], values))
        )
        found = _attention([queries, keys, values], layout.mask, scaling)
        out = torch.cat([out, layout.completions.collect(found)])
    return out[None], None


def is_one_token_of_groups(query: Tensor, key: Tensor, settings: dict[str, Any]) -> bool:
    """Whether each row asks with one token, several heads with the same keys, and nothing else."""
    plain = settings.get("position_bias") is None and settings.get("cache") is None
    return plain and query.shape[2] == 1 and query.shape[1] > key.shape[1]


def attend_in_groups(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """Queries (n, H, 1, D), keys and values (n, H', t, D), mask (n, 1, 1, t) -> (n, 1, H, D).

    The heads that share keys are taken for queries of one head, so that no key is repeated.
    """
    rows, heads, _, width = query.shape
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    found = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=mask, scale=scaling
    )
    return found.reshape(rows, 1, heads, width)


def _attention(parts: list[Tensor], mask: Tensor | None, scaling: float | None) -> Tensor:
    """Queries, keys and values (n, t, heads, D) -> (n, t, heads, D); causal without a mask."""
    query, key, value = (x.transpose(1, 2) for x in parts)
    grouped = query.shape[1] // key.shape[1]
    if grouped > 1 and mask is not None and query.device.type == "cuda":
        # Fused kernels of GPUs know heads that share keys, and masks, but not both.
        key, value = (x.repeat_interleave(grouped, dim=1) for x in (key, value))
        grouped = 1
    found = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scaling,
        enable_gqa=grouped > 1,
    )
    return found.transpose(1, 2)


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, sdpa_mask)


def decoder_arguments(layout: SharedPrompts) -> dict[str, Any]:
    """What a decoder is called with for these tokens."""
    # A mask of four dimensions is one that transformers leaves alone, and `attend` ignores.
    untouched = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=layout.tokens.device)
    return {
        "input_ids": layout.tokens[None],
        "position_ids": layout.position_ids[None],
        "attention_mask": untouched,
        "shared_prompts": layout,
    }


def predict(
    module: Any, output: str, tokens: Tensor, positions: Tensor, layout: SharedPrompts | None
) -> Tensor:
    """(M, ...) of a module's output at the token before each of `positions`.

    Args:
        module: a decoder, or a model with its head.
        output: the output's name.
        tokens, positions: (n, t) int64 and bool, right-padded rollouts and the M tokens to predict.
        layout: the same with each prompt once, for a module that may have it.
    """
    if layout is not None:
        found: Tensor = module(**decoder_arguments(layout), use_cache=False)[output]
        return take(found[0], layout.states)
    before = torch.roll(positions, shifts=-1, dims=1)  # the state that predicts token t is t-1
    found = module(input_ids=tokens, use_cache=False)[output]
    return found[before]


@dataclass(frozen=True)
class PromptSharing:
    """When a model's passes may share prompts, and when that pays.

    Attributes:
        longest: tokens of a rollout beyond which layers forget its first ones; None: they never do.
        pairs_per_token: pairs of query and key that cost as much as a token in all layers: with P
            parameters in L layers and queries of q numbers, 2 P against 4 q L.
    """

    longest: int | None
    pairs_per_token: float


@torch.no_grad()
def find_sharing(model: Any, likeness: Any = None) -> PromptSharing | None:
    """Let a model share prompts; None where it cannot.

    Nothing says for sure that a model's tokens know of others through this attention alone, so it
    is tried on a few as well, and has its own attention back where they know more.

    Args:
        model: that is to share prompts.
        likeness: of the same kind, to be tried in its place where it has no weights yet.
    """
    tried = model if likeness is None else likeness
    config = model.config.get_text_config()
    if config._attn_implementation != PLAIN or not model._supports_attention_backend:
        return None
    kinds = set(getattr(config, "layer_types", None) or KNOWN)
    if kinds - KNOWN or any(isinstance(module, torch.nn.Conv1d) for module in model.modules()):
        return None
    tried.set_attn_implementation(NAME)
    if not _sharing_gap(tried) < TOLERANCE.get(tried.dtype, COARSE):
        log.info("prompts are not shared: %s sees more than attention shows it", type(model))
        tried.set_attn_implementation(PLAIN)
        return None
    model.set_attn_implementation(NAME)
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    layers = sum(
        parameter.numel()
        for module in model.get_decoder().modules()
        if not isinstance(module, torch.nn.Embedding)
        for parameter in module.parameters(recurse=False)
    )
    slides = getattr(config, "use_sliding_window", True)
    window = getattr(config, "sliding_window", None) if slides else None
    return PromptSharing(window, layers / (2 * heads * head * config.num_hidden_layers))


def _sharing_gap(model: Any) -> float:
    """How far states of two rollouts with one prompt are from those of passes apart, relative."""
    device = model.device
    tokens = torch.arange(12, device=device).view(2, 6) % model.config.get_text_config().vocab_size
    tokens[:, :3] = tokens[0, :3]
    positions = (torch.arange(6, device=device) >= 3).repeat(2, 1)
    layout = share_prompts(tokens, positions, torch.zeros(2, device=device).long())
    decoder = model.get_decoder()
    apart, together = (
        predict(decoder, "last_hidden_state", tokens, positions, each) for each in (None, layout)
    )
    return float((apart - together).float().norm() / apart.float().norm())

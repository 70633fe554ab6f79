"""Token by token through a model of transformers, for rows of which some end before others."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy

ROOM = 32  # tokens for which a cache makes room at once


class Decoding:
    """Rows of a batch and the logits (m, V) of their next tokens.

    The model's own generation defaults have no say: a repetition penalty (Qwen2.5 ships one) or a
    top-k would sample from another distribution than the one that is trained.
    """

    def __init__(self, policy: Policy, requests: Sequence[RolloutRequest]) -> None:
        self._model = policy.model
        self._options: dict[str, Any] = {"use_cache": True}
        if "logits_to_keep" in inspect.signature(policy.model.forward).parameters:
            self._options["logits_to_keep"] = 1  # of a prompt the last token's
        self._cache = cache_with_room(policy.model.config)
        prompts = list(dict.fromkeys(r.prompt_tokens for r in requests))
        width = max(map(len, prompts))
        tokens = torch.full((len(prompts), width), policy.pad_id)
        for row, prompt in enumerate(prompts):  # left-padded: completions start in one column
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        mask = torch.arange(width)[None, :] >= width - lengths[:, None]
        self._mask = mask.to(policy.device)
        self.logits = self._run(tokens.to(policy.device))
        place = {prompt: row for row, prompt in enumerate(prompts)}
        rows = torch.tensor([place[r.prompt_tokens] for r in requests], device=policy.device)
        if len(prompts) < len(requests):
            self.keep(rows)
            self.logits = self.logits[rows]

    def keep(self, rows: Tensor) -> None:
        """Go on with some of the rows (k,), or with several copies of some."""
        self._cache.reorder_cache(rows)
        self._mask = self._mask[rows]

    def step(self, tokens: Tensor) -> None:
        """Append a token (m,) to each row."""
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=True)
        self.logits = self._run(tokens[:, None])

    def _run(self, tokens: Tensor) -> Tensor:
        positions = (self._mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        found = self._model(
            input_ids=tokens,
            attention_mask=self._mask.long(),
            position_ids=positions,
            past_key_values=self._cache,
            **self._options,
        )
        logits: Tensor = found.logits[:, -1]
        return logits


def cache_with_room(config: Any) -> Any:
    """transformers' cache for a model; of layers that keep every token, one that seldom copies."""
    cache: Any = DynamicCache(config=config)
    cache.layers = [
        RoomyLayer() if type(layer) is DynamicLayer else layer  # type: ignore[no-untyped-call]
        for layer in cache.layers
    ]
    return cache


def check_cache(model: Any) -> None:
    """Raise ValueError for a model that has states of earlier tokens which its cache does not hold.

    These (of RecurrentGemma, Mamba, RWKV) would stay with rows that others have taken the place of,
    or be lost with every token.
    """
    takes_a_cache = "past_key_values" in inspect.signature(model.forward).parameters
    if takes_a_cache and not getattr(model, "_is_stateful", False):
        return
    held = {type(layer) for layer in cache_with_room(model.config).layers}
    if not takes_a_cache or held <= {RoomyLayer, DynamicSlidingWindowLayer}:
        raise ValueError(
            f"engine=transformers cannot sample from {type(model).__name__}: it keeps states of "
            "earlier tokens outside of the cache, where they cannot follow rollouts of which some "
            "end before others; use engine=vllm"
        )


class RoomyLayer(DynamicLayer):
    """Keys and values (n, heads, t, D) with room for more tokens behind them.

    The library's own copies everything for every token.
    """

    keys: Tensor
    values: Tensor
    _whole: tuple[Tensor, Tensor] | None = None  # of which keys and values are the beginning

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append to both; returns all that there is."""
        if not self.is_initialized:
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        begin = self.keys.shape[-2]
        end = begin + key_states.shape[-2]
        if self._whole is None or end > self._whole[0].shape[-2]:
            self._whole = with_room(self.keys, end), with_room(self.values, end)
        for whole, new in zip(self._whole, (key_states, value_states), strict=True):
            whole[..., begin:end, :] = new
        self.keys, self.values = (whole[..., :end, :] for whole in self._whole)
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[arg-type]
        self._whole = None


def with_room(states: Tensor, length: int) -> Tensor:
    """A tensor that begins like `states` (..., t, D) and holds `length` tokens and some more."""
    *rest, used, width = states.shape
    whole = states.new_empty(*rest, length + ROOM, width)
    whole[..., :used, :] = states
    return whole

"""Rollouts laid end to end with each prompt once, and moving tokens between that and rectangles.

A group's rollouts share their prompt, and under causal attention so do its states: computing them
once per group instead of once per rollout changes no number and saves most of a pass where answers
are shorter than prompts. Nothing is padded but in attention, which needs rectangles.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Segments:
    """n runs of tokens, one after another, and the same as a rectangle padded on the right.

    Attributes:
        lengths: (n,) tokens of each run, 0 or more.
        width: tokens of the longest run.
        place: (S,) where each token stands in the flat (n · width) rectangle.
        token: (n · width,) the token that stands there; padding repeats the last token before it.
    """

    lengths: Tensor
    width: int
    place: Tensor
    token: Tensor

    @classmethod
    def of(cls, lengths: Tensor) -> "Segments":
        """From the lengths (n,) of the runs; at least one token in all."""
        ends = lengths.cumsum(0)
        total, width = int(ends[-1]), int(lengths.max())
        run = torch.repeat_interleave(
            torch.arange(len(lengths), device=lengths.device), lengths, output_size=total
        )
        starts = ends - lengths
        column = torch.arange(total, device=lengths.device) - starts[run]
        inside = torch.minimum(
            torch.arange(width, device=lengths.device), (lengths - 1).clamp(min=0)[:, None]
        )
        token = (starts[:, None] + inside).clamp(max=total - 1).flatten()
        return cls(lengths, width, run * width + column, token)

    def spread(self, values: Tensor) -> Tensor:
        """(S, ...) -> (n, width, ...), differentiable; padding holds values of other tokens."""
        found: Tensor = _Spread.apply(values, self.token, self.place)  # type: ignore[no-untyped-call]
        return found.view(len(self.lengths), self.width, *values.shape[1:])

    def collect(self, rectangle: Tensor) -> Tensor:
        """(n, width, ...) -> (S, ...), differentiable: what `spread` spread, without padding."""
        flat = rectangle.reshape(-1, *rectangle.shape[2:])
        found: Tensor = _Collect.apply(flat, self.place)  # type: ignore[no-untyped-call]
        return found


class _Spread(torch.autograd.Function):
    """Tokens are moved, none twice but for padding, so the gradient is moved back: no sums."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, token: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return values.index_select(0, token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (place,) = ctx.saved_tensors
        return gradient.index_select(0, place), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, flat: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.rows = len(flat)
        return flat.index_select(0, place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (place,) = ctx.saved_tensors
        spread = gradient.new_zeros(ctx.rows, *gradient.shape[1:])
        return spread.index_copy_(0, place, gradient), None


def take(values: Tensor, rows: Tensor) -> Tensor:
    """(n, ...) and (m,) int64, any of them several times -> (m, ...), differentiable.

    Gradients of rows that were taken often are summed in float32 at least.
    """
    found: Tensor = _Take.apply(values, rows)  # type: ignore[no-untyped-call]
    return found


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.length = len(values)
        return values.index_select(0, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        precise = torch.promote_types(gradient.dtype, torch.float32)
        total = gradient.new_zeros(ctx.length, *gradient.shape[1:], dtype=precise)
        return total.index_add_(0, rows, gradient.to(precise)).to(gradient.dtype), None


@dataclass(frozen=True)
class SharedPrompts:
    """S tokens of n rollouts: the P prompts one after another, then the completions.

    The last token of a completion predicts nothing and is left out.

    Attributes:
        tokens: (S,) int64.
        position_ids: (S,) int64, where each token stands in its rollout.
        states: (M,) int64, the token before each sampled one, rollout by rollout.
        prompt_of: (n,) int64 in [0, P).
        prompts: the P runs of prompt tokens.
        completions: the n runs behind them; None where every completion is a single token.
        mask: (n, 1, C, L + C) bool, what the tokens of completions (at most C) see of their prompt
            (at most L) and of themselves; None where there are none.
    """

    tokens: Tensor
    position_ids: Tensor
    states: Tensor
    prompt_of: Tensor
    prompts: Segments
    completions: Segments | None
    mask: Tensor | None

    @property
    def prompt_tokens(self) -> int:
        """Those of `tokens` that are of prompts."""
        return len(self.prompts.place)


def share_prompts(tokens: Tensor, positions: Tensor, group: Tensor) -> SharedPrompts:
    """Lay rollouts out with each prompt once.

    Args:
        tokens: (n, t) int64, right-padded.
        positions: (n, t) bool, the M sampled tokens; never column 0, and at least one in a row.
        group: (n,) int64, rollouts with the same number have the same tokens before their first
            sampled one.

    Raises ValueError where they have not.
    """
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    length = positions.int().argmax(dim=1)  # (n,) of the prompts
    inputs = (positions * columns).amax(dim=1) - length  # (n,) completion tokens but the last
    _, prompt_of = torch.unique(group, return_inverse=True)
    first = _first_rows(prompt_of)
    own = first[prompt_of]
    of_prompt = columns < length[:, None]
    differs = (tokens != tokens[own]) & of_prompt
    if bool((length != length[own]).any() | differs.any()):
        raise ValueError("rollouts of one group have different prompts: they cannot share one")
    prompts = Segments.of(length[first])
    of_completion = ~of_prompt & (columns < (length + inputs)[:, None])
    laid = torch.cat([tokens[first][of_prompt[first]], tokens[of_completion]])
    places = columns.expand_as(tokens)
    position_ids = torch.cat([places[first][of_prompt[first]], places[of_completion]])
    row, column = positions.nonzero(as_tuple=True)
    before, of_row = column - 1, length[row]
    prompt_start = (prompts.lengths.cumsum(0) - prompts.lengths)[prompt_of[row]]
    start = (inputs.cumsum(0) - inputs)[row] + len(prompts.place)
    states = torch.where(before < of_row, prompt_start + before, start + before - of_row)
    completions = Segments.of(inputs) if bool(inputs.any()) else None
    mask = None if completions is None else _completion_mask(length, prompts.width, completions)
    return SharedPrompts(laid, position_ids, states, prompt_of, prompts, completions, mask)


def _first_rows(prompt_of: Tensor) -> Tensor:
    """(P,) the first row of each prompt."""
    rows = torch.arange(len(prompt_of), device=prompt_of.device)
    count = int(prompt_of.max()) + 1
    return rows.new_full((count,), len(rows)).scatter_reduce_(0, prompt_of, rows, "amin")


def _completion_mask(length: Tensor, width: int, completions: Segments) -> Tensor:
    """(n, 1, C, L + C) bool; padding rows see themselves, so that no row is empty."""
    n, size = len(length), completions.width
    prompt = (torch.arange(width, device=length.device) < length[:, None])[:, None]  # (n, 1, L)
    own = torch.ones(size, size, dtype=torch.bool, device=length.device).tril()
    parts = prompt.expand(n, size, width), own.expand(n, size, size)
    return torch.cat(parts, dim=2)[:, None]

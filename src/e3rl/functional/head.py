"""The output layer in blocks of tokens: log-probs and entropies, the (M, V) logits never whole.

With s = z/τ, p = softmax(s) and the sampled token a, per token

    ln p(a) = s_a - logsumexp(s)        ∂ ln p(a) / ∂s_v = 1[v = a] - p_v
    H       = -Σ_v p_v ln p_v           ∂H / ∂s_v        = -p_v (ln p_v + H)

The backward pass makes each block's logits again instead of keeping them: one product with the
weights more, for memory of block x V instead of M x V. A pass writes the logits of all its blocks
into one buffer, and on a CPU goes over a block in strips of a few rows, so that what is made of
them stays in the cache: new memory for every (block, V) would cost more than the products do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from e3rl.functional.checks import check_vectors
from e3rl.functional.logprobs import check_temperatures, scaled_logits

STRIP = 2**19  # logits worked on at a time on a CPU: 2 MiB


@dataclass(frozen=True)
class Adjustment:
    """What a model makes of its output layer's products x: cap · tanh(x · factor / divisor / cap).

    Attributes:
        factor, divisor: multiplied by (Cohere), divided by (Granite).
        softcap: largest |logit| (Gemma 2), or None.
    """

    factor: float = 1.0
    divisor: float = 1.0
    softcap: float | None = None

    def __call__(self, products: Tensor) -> Tensor:
        """Products (..., V) -> logits (..., V), rounded as models do it."""
        logits = products if self.factor == 1 else products * self.factor
        logits = logits if self.divisor == 1 else logits / self.divisor
        if self.softcap is None:
            return logits
        return torch.tanh(logits / self.softcap) * self.softcap

    def slope(self, logits: Tensor) -> Tensor | float:
        """∂ logits / ∂ products where the logits are these: (..., V), or one number for all."""
        linear = self.factor / self.divisor
        if self.softcap is None:
            return linear
        return (1 - (logits / self.softcap).square()) * linear


@dataclass(frozen=True)
class Head:
    """An output layer: logits = adjustment(hidden Wᵀ + b), the products formed in `dtype`."""

    weight: Tensor  # (V, H)
    bias: Tensor | None  # (V,)
    adjustment: Adjustment
    dtype: torch.dtype

    def logits(self, hidden: Tensor) -> Tensor:
        """(m, H) -> (m, V), in `dtype`; autocast has no say in it."""
        weight, bias = (None if x is None else x.to(self.dtype) for x in (self.weight, self.bias))
        assert weight is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return self.adjustment(torch.nn.functional.linear(hidden.to(self.dtype), weight, bias))

    def cast(self) -> "Head":
        """The same with weights in `dtype` already, for use on several blocks."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return Head(self.weight.to(self.dtype), bias, self.adjustment, self.dtype)

    @torch.no_grad()
    def blocks(self, hidden: Tensor, block: int) -> Iterator[tuple[slice, Tensor]]:
        """Rows of hidden states (M, H) and their products x (m, V), without gradient.

        They are in `dtype`, before the adjustment, and in one buffer: theirs until the next block.
        """
        own = self.cast()
        buffer = own.weight.new_empty(min(block, len(hidden)), len(own.weight))
        for start in range(0, len(hidden), block):
            rows = slice(start, min(start + block, len(hidden)))
            states, products = hidden[rows].to(self.dtype), buffer[: rows.stop - start]
            with torch.autocast(hidden.device.type, enabled=False):
                if own.bias is None:
                    torch.mm(states, own.weight.T, out=products)
                else:
                    torch.addmm(own.bias, states, own.weight.T, out=products)
            yield rows, products


def strips(logits: Tensor) -> Iterator[slice]:
    """Rows of logits (m, V) to work on at a time: a few on a CPU, and all elsewhere."""
    rows, vocabulary = logits.shape
    step = max(1, STRIP // vocabulary) if logits.device.type == "cpu" else rows
    return (slice(start, start + step) for start in range(0, rows, step))


def block_scores(
    hidden: Tensor,
    head: Head,
    tokens: Tensor,
    temperatures: Tensor,
    block: int,
    entropies: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of sampled tokens, and entropies, differentiable in hidden, weight and bias.

    Softmax, sums over the vocabulary and the weight's gradient over blocks are at least float32.

    Args:
        hidden: (M, H), the state that predicts each token.
        head: the output layer.
        tokens: (M,) int64, the sampled ids.
        temperatures: (M,) > 0, as sampled.
        block: tokens whose logits exist at a time.
        entropies: whether entropies are wanted.

    Returns:
        (M,) ln p(token) and (M,) nats or None; float32 (float64 where the head is).

    Raises:
        ValueError: shapes that do not fit, a temperature that is not above 0, a block below 1.
    """
    check_vectors(tokens=tokens, temperatures=temperatures)
    if len(hidden) != len(tokens):
        raise ValueError(f"expected hidden (M, H) of {len(tokens)} tokens, got {len(hidden)}")
    check_temperatures(hidden, temperatures)
    if block < 1:
        raise ValueError(f"head.block={block}: use at least 1 token")
    found: tuple[Tensor, Tensor] = _BlockScores.apply(
        hidden, head.weight, head.bias, head, tokens, temperatures, block, entropies
    )  # type: ignore[no-untyped-call]
    return found[0], found[1] if entropies else None


class _BlockScores(torch.autograd.Function):
    """See `block_scores`; weight and bias are arguments so that autograd knows them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        head: Head,
        tokens: Tensor,
        temperatures: Tensor,
        block: int,
        entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(head.dtype, torch.float32)
        # None is a view of another: FSDP2 warns of outputs that are.
        normalisers, chosen, found = (
            hidden.new_zeros(len(tokens), dtype=precise) for _ in range(3)
        )
        for rows, products in head.blocks(hidden, block):
            of = [x[rows] for x in (tokens, temperatures, chosen, normalisers, found)]
            for strip in strips(products):
                own, taus, *results = (x[strip] for x in of)
                scaled = scaled_logits(head.adjustment(products[strip]), taus)
                logprobs = torch.log_softmax(scaled, dim=1)  # one pass; logsumexp would take four
                results[0][:] = logprobs.gather(1, own[:, None])[:, 0]
                results[1][:] = scaled.gather(1, own[:, None])[:, 0] - results[0]
                if entropies:
                    results[2][:] = -torch.linalg.vecdot(logprobs.exp(), logprobs)
        ctx.save_for_backward(hidden, weight, bias, tokens, temperatures, normalisers, found)
        ctx.adjustment, ctx.dtype, ctx.block = head.adjustment, head.dtype, block
        ctx.set_materialize_grads(False)
        if not entropies:
            ctx.mark_non_differentiable(found)
        return chosen, found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        weight, bias = ctx.saved_tensors[1:3]
        own = Head(weight, bias, ctx.adjustment, ctx.dtype).cast()
        # It may be called under autocast, which would form the products in less than was asked for.
        with torch.autocast(weight.device.type, enabled=False):
            return *_head_gradients(ctx, own, gradients), None, None, None, None, None


def _head_gradients(
    ctx: Any, head: Head, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """With respect to hidden states, weight and bias, where they are wanted."""
    hidden, weight, bias, tokens, temperatures, normalisers, entropies = ctx.saved_tensors
    wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
    precise = normalisers.dtype
    by_hidden = torch.empty_like(hidden) if wants_hidden else None
    by_weight = torch.zeros_like(weight, dtype=precise) if wants_weight else None
    by_bias = torch.zeros_like(bias, dtype=precise) if wants_bias else None
    of = (tokens, temperatures, normalisers, entropies, *gradients)
    for rows, slopes in head.blocks(hidden, ctx.block):  # products at first
        given: list[Any] = [None if x is None else x[rows] for x in of]
        factors = torch.empty_like(normalisers[rows])
        for strip in strips(slopes):
            own: list[Any] = [None if x is None else x[strip] for x in given]
            slopes[strip], factors[strip] = _product_gradient(slopes[strip], head.adjustment, *own)
        # Rows are scaled where they are narrow: (m, H) and not (m, V).
        factors = factors[:, None]
        if by_bias is not None:
            by_bias += slopes.T.to(precise) @ factors[:, 0]
        if by_hidden is not None:
            by_hidden[rows] = ((slopes @ head.weight).to(precise) * factors).to(hidden.dtype)
        if by_weight is not None:
            _add_product(by_weight, slopes, (hidden[rows].to(precise) * factors).to(ctx.dtype))
    return by_hidden, by_weight, by_bias


def _product_gradient(
    products: Tensor,
    adjustment: Adjustment,
    tokens: Tensor,
    temperatures: Tensor,
    normalisers: Tensor,
    entropies: Tensor,
    *gradients: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to products (m, V), which may be overwritten; see below."""
    logits = adjustment(products)
    slope, scaled = adjustment.slope(logits), scaled_logits(logits, temperatures)
    slopes, factors = _logit_gradient(scaled, tokens, normalisers, entropies, gradients)
    factors = factors / temperatures.to(factors.dtype)
    if isinstance(slope, Tensor):
        return slopes.mul_(slope), factors
    return slopes, factors * slope


def _logit_gradient(
    scaled: Tensor,
    tokens: Tensor,
    normalisers: Tensor,
    entropies: Tensor,
    gradients: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to `scaled`, which is overwritten, as (m, V) rows and (m,) factors.

    `gradients` are those of log-probs and entropies, (m,) each or None.
    """
    by_logprob, by_entropy = gradients
    if by_logprob is None:
        by_logprob = torch.zeros_like(normalisers)
    scaled.sub_(normalisers[:, None])  # log-probs from here on
    if by_entropy is None:
        slopes = scaled.exp_()
        ones = torch.ones_like(normalisers)
        return slopes.scatter_add_(1, tokens[:, None], -ones[:, None]), -by_logprob
    probs = scaled.exp()
    slopes = scaled.add_(entropies[:, None]).mul_(-by_entropy[:, None])
    slopes -= by_logprob[:, None]
    slopes *= probs
    slopes.scatter_add_(1, tokens[:, None], by_logprob[:, None].to(slopes.dtype))
    return slopes, torch.ones_like(normalisers)


def _add_product(total: Tensor, slopes: Tensor, hidden: Tensor) -> None:
    """total (V, H) += slopesᵀ (V, m) · hidden (m, H), in place."""
    if total.dtype == slopes.dtype:
        total.addmm_(slopes.T, hidden)
    else:
        total += slopes.T @ hidden

"""What a policy predicts at M places of its rollouts, from whole logits or in blocks of them."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from e3rl.functional.entropy import token_entropy
from e3rl.functional.head import Head, block_scores, strips
from e3rl.functional.logprobs import token_logprobs

# (m, V) logits at temperature 1, (m,) tokens and temperatures -> (m, ...), token by token.
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]


class Predictions(Protocol):
    """M predictions, waiting to be asked about the tokens that were sampled from them."""

    def scores(
        self, tokens: Tensor, temperatures: Tensor, entropies: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(M,) log-probs, and entropies in nats where wanted, with gradient."""

    def measure(self, measure: Measure, tokens: Tensor, temperatures: Tensor) -> Tensor:
        """(M, ...) of what `measure` finds, without gradient."""

    def at(self, places: Tensor) -> "Predictions":
        """Those at some (m,) of the M places."""


class WholeLogits:
    """From logits (M, V)."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def scores(
        self, tokens: Tensor, temperatures: Tensor, entropies: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        found = token_entropy(self.logits, temperatures) if entropies else None
        return token_logprobs(self.logits, tokens, temperatures), found

    @torch.no_grad()
    def measure(self, measure: Measure, tokens: Tensor, temperatures: Tensor) -> Tensor:
        return measure(self.logits, tokens, temperatures)

    def at(self, places: Tensor) -> "WholeLogits":
        return WholeLogits(self.logits.index_select(0, places))


class LogitBlocks:
    """From hidden states (M, H) and the output layer, `block` tokens at a time."""

    def __init__(self, hidden: Tensor, head: Head, block: int) -> None:
        self.hidden = hidden
        self.head = head
        self.block = block

    def scores(
        self, tokens: Tensor, temperatures: Tensor, entropies: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        return block_scores(self.hidden, self.head, tokens, temperatures, self.block, entropies)

    @torch.no_grad()
    def measure(self, measure: Measure, tokens: Tensor, temperatures: Tensor) -> Tensor:
        if not len(self.hidden):
            return measure(self.head.logits(self.hidden), tokens, temperatures)
        found = []
        for rows, products in self.head.blocks(self.hidden, self.block):
            own, taus = tokens[rows], temperatures[rows]
            for strip in strips(products):
                logits = self.head.adjustment(products[strip])
                found.append(measure(logits, own[strip], taus[strip]))
        return torch.cat(found)

    def at(self, places: Tensor) -> "LogitBlocks":
        return LogitBlocks(self.hidden.index_select(0, places), self.head, self.block)

"""Floating-point operations of passes over a dense decoder, from what went through it.

A multiplication and an addition are two operations. Per token and weight a forward pass takes 2,
and a backward pass 4: 2 for the gradient of what came in and 2 for that of the weight, which a
frozen weight does not need (arXiv 2001.08361, section 2.1; arXiv 2204.02311, appendix B). Attention
takes, per layer, 2 q for a score and 2 q for its value, q = heads x width of a head, and twice that
backwards: 12 L q t for a token that attends to t tokens, itself included. Norms, rotations,
activations and the softmax are left out, as usual, and so is what is computed a second time to save
memory: the numbers say what the mathematics needs, not what a machine did.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class MatmulSizes:
    """What the operations of a pass follow from; numbers of elements.

    Embeddings are looked up, not multiplied, and the output layer is counted by itself.
    """

    trained: int  # weights that every token is multiplied with and that have gradients
    frozen: int  # and those that have none
    head: int  # hidden size x vocabulary
    head_trained: bool
    layers: int
    query: int  # heads x width of a head


@dataclass
class PassCounts:
    """What went through a model with gradient, and without.

    Each is (3,) float64: tokens, pairs of a token and one that it attends to, and tokens whose
    logits were made.
    """

    with_gradient: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    without: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))

    def add(self, attended: Tensor, logits: int) -> None:
        """Count a pass over S tokens, each of which attends to `attended` (S,), itself included."""
        pairs = attended.sum(dtype=torch.float64)
        found = torch.stack([pairs.new_tensor(len(attended)), pairs, pairs.new_tensor(logits)])
        if torch.is_grad_enabled():
            self.with_gradient = self.with_gradient.to(found.device) + found
        else:
            self.without = self.without.to(found.device) + found

    def flops(self, sizes: MatmulSizes) -> float:
        """Operations of all passes, those with gradient backwards as well."""
        per_token = 2 * (sizes.trained + sizes.frozen)
        forward = [per_token, 4 * sizes.layers * sizes.query, 2 * sizes.head]
        both = [
            6 * sizes.trained + 4 * sizes.frozen,
            12 * sizes.layers * sizes.query,
            (6 if sizes.head_trained else 4) * sizes.head,
        ]
        counts = zip(self.without.tolist(), forward, self.with_gradient.tolist(), both, strict=True)
        return float(sum(n * once + m * twice for n, once, m, twice in counts))

"""What precision new tensors have, whatever the weights are in."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Tensors made without a dtype are float32 within; also a decorator.

    Lightning's half precisions make them half within a training step: loss weights and counts
    would be rounded to three digits, and so would those of another thread that samples meanwhile.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)

"""What engines draw from torch's generators is not the run's."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def preserve_torch_rng() -> Iterator[None]:
    """Leaves torch's random states as they were.

    vLLM draws from them even for seeded requests, and a model that is built anew for its weights.
    """
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield

"""Optimiser states that wait in the machine's memory, and are on the device in steps alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

HOST = torch.device("cpu")


@contextmanager
def states_on_device(optimizer: Optimizer) -> Iterator[None]:
    """For a step, which is then computed where it would be anyhow, with the same numbers."""
    move_states(optimizer)
    try:
        yield
    finally:
        move_states(optimizer, HOST)


def move_states(optimizer: Optimizer, to: torch.device | None = None) -> None:
    """Move the states of an optimiser to a device, or of each weight to the weight's own (None).

    Counters of steps stay where the optimiser wants them.
    """
    for weight, states in optimizer.state.items():
        for name, value in states.items():
            if isinstance(value, Tensor) and value.ndim > 0:
                states[name] = value.to(weight.device if to is None else to)

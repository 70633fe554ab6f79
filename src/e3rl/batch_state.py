"""Sampled batches as checkpoint state: everything but the objects that sampled and scored them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from e3rl.batch import RolloutBatch
from e3rl.state import require_keys

# Done with once a batch is sampled, or of the process that holds it.
LEFT_OUT = {
    *("plan", "base_temperature", "temperature_of", "token_factors_of", "truncation_of", "scorer"),
    *("wants_grad_norms", "grad_norms", "entropy", "upcoming", "born", "born_cpu"),
}


def batch_state(batch: RolloutBatch) -> dict[str, Any]:
    """The batch's fields by name: builtins and CPU tensors."""
    kept = [item.name for item in fields(batch) if item.name not in LEFT_OUT]
    values = {name: getattr(batch, name) for name in kept}
    return {k: v.cpu() if hasattr(v, "cpu") else v for k, v in values.items()}


def batch_from_state(state: Mapping[str, Any]) -> RolloutBatch:
    """The batch that `batch_state` described; raises ValueError for other keys."""
    kept = [item.name for item in fields(RolloutBatch) if item.name not in LEFT_OUT]
    require_keys("RolloutBatch", state, kept)
    return RolloutBatch(**state)

"""A policy whose layers are compiled, which e3rl's own are not: see levers.py."""

from typing import Any

from e3rl.policy.policy import Policy


class CompiledPolicy(Policy):
    """Every layer of the model by itself, for batches of any shape."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for layer in self.model.model.layers:
            layer.compile(dynamic=True)

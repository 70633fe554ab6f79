"""What rules share that sample around the temperature of another rule."""

from collections.abc import Mapping
from typing import Any

from e3rl.checkpoints.state import require_keys
from e3rl.temperatures.base import EntropyReading, TemperatureRule, in_terms_of


class WrappingRule:
    """Leaves learning, state and metrics to the rule that decides the step's temperature τ.

    Args:
        rule: decides τ (`temperatures/`).
    """

    def __init__(self, rule: TemperatureRule) -> None:
        self.rule = rule

    def bind(self, total_steps: int, lookahead: int = 0) -> None:
        self.rule.bind(total_steps, lookahead)

    def observe(self, reading: EntropyReading) -> None:
        """Let the rule learn, in terms of τ; raises what it raises."""
        base = self.rule.decide(reading.step).temperature
        self.rule.observe(in_terms_of(reading, base))

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self.rule.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, ("rule",))
        self.rule.load_state_dict(state["rule"])

    def metrics(self) -> dict[str, float]:
        """Those of the rule; its `value` is τ, and the tokens' mean is `rollout/temperature`."""
        return self.rule.metrics()

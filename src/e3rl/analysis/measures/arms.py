"""Arms: how they are named, and which of the control's evaluations they are compared with."""

import math
from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

Row = dict[str, Any]  # of a table of numbers, by column; a number that does not exist is None

ARM_LABELS = {
    "grpo": "GRPO",
    "grpo_er": "GRPO + ER",
    "ts": "GRPO + TS",
    "ts_an": "GRPO + TS + AN",
    "budget": "GRPO + budget",
    "e3": "E3",
}


def arm_label(arm: str) -> str:
    """How tables and figures name an arm: the paper's name for its arms, else its own."""
    return ARM_LABELS.get(arm, arm)


class SampledArm(Protocol):
    """Anything measured of an arm by one evaluation: at an entropy, in nats per token."""

    @property
    def arm(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def entropy(self) -> float: ...


S = TypeVar("S", bound=SampledArm)


def control_of(item: S, controls: Mapping[str, S]) -> S | None:
    """Which of the control's evaluations an evaluation is compared with.

    `controls` are the control's, by name of the evaluation.

    The one of the same name; for `live` the one of `live` and `matched...` whose entropy is
    nearest. None for the control itself, or where there is none.
    """
    if any(control.arm == item.arm for control in controls.values()):
        return None
    near = [c for name, c in controls.items() if name == "live" or name.startswith("matched")]
    if item.name != "live" or not near or math.isnan(item.entropy):
        return controls.get(item.name)
    return min(near, key=lambda control: abs(control.entropy - item.entropy))

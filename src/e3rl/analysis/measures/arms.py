"""Arms: how they are named, and which of the control's evaluations they are compared with."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from e3rl.analysis.sources import runs

Row = dict[str, Any]  # of a table of numbers, by column; a number that does not exist is None

ARM_LABELS = {
    "grpo": "GRPO",
    "grpo_er": "GRPO + ER",
    "ts": "GRPO + TS",
    "ts_an": "GRPO + TS + AN",
    "budget": "GRPO + budget",
    "e3": "E3",
}
AND = runs.AND  # between the names of arms whose mean is compared


def arm_label(arm: str) -> str:
    """How tables and figures name an arm: the paper's name for its arms, else its own."""
    if AND in arm:
        return f"mean of {' and '.join(map(arm_label, arm.split(AND)))}"
    return ARM_LABELS.get(arm, arm)


LIVE = "live"  # the evaluation of an arm at its own temperature


class SampledArm(Protocol):
    """Anything measured of an arm by a named evaluation."""

    @property
    def arm(self) -> str: ...
    @property
    def name(self) -> str: ...


S = TypeVar("S", bound=SampledArm)


def control_of(item: S, controls: Mapping[str, S]) -> S | None:
    """The control's evaluation of the same name; None for the control itself.

    `controls` are the control's, by name of the evaluation. An arm at its own temperature is not
    compared with that one, but with the control at equal entropy (`measures.matched_control`).
    """
    if any(control.arm == item.arm for control in controls.values()):
        return None
    return controls.get(item.name)

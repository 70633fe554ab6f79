"""`Finding`: what one check says about a run that has not started."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One check's result, with the remedy unless it is ok."""

    check: str
    level: Level
    says: str
    remedy: str = ""


def graded(check: str, value: float, warn: float, fail: float, says: str, remedy: str) -> Finding:
    """`fail` where the value lies above `fail`, `warn` where it lies above `warn`; a NaN fails."""
    if value <= warn:
        return Finding(check, "ok", says)
    return Finding(check, "warn" if value <= fail else "fail", says, remedy)


def is_go(findings: Iterable[Finding]) -> bool:
    """Warnings let a run start, failures do not."""
    return all(finding.level != "fail" for finding in findings)

"""`Verdict`: what a completion earns, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["correct", "wrong", "unparsed", "timeout", "error"]
STATUSES: tuple[Status, ...] = ("correct", "wrong", "unparsed", "timeout", "error")


@dataclass(frozen=True)
class Verdict:
    """What a completion earns, and why.

    correct, wrong   judged
    unparsed         no answer in the required format, or none that can be read
    timeout          judging ran past the deadline
    error            judging ran out of memory or took its process down

    `correct` alone counts as right in accuracies, pass@k and budgets. A verifier pays 1 for it and
    0 for everything else; a reward function pays what it returns, and nothing where it did not
    come to an end.

    `answer` is what the completion answers, in one spelling, whatever became of judging it; None
    where it has no answer in the required format. It is known to verdicts that
    `RewardPool.collect` returns. `parts` are the rewards that a sum was made of, by name. Neither
    plays a part in equality.
    """

    reward: float
    status: Status
    answer: str | None = field(default=None, compare=False)
    parts: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def is_correct(self) -> bool:
        return self.status == "correct"


CORRECT = Verdict(1.0, "correct")
WRONG = Verdict(0.0, "wrong")
UNPARSED = Verdict(0.0, "unparsed")
TIMEOUT = Verdict(0.0, "timeout")
ERROR = Verdict(0.0, "error")

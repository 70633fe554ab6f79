"""`RunHealth`: what a run's rows say once, and loudly, when training has stopped to make sense."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

FIRST_STEPS = 8  # whose mean entropy later ones are compared with
IDLE_STEPS = 16  # in a row without any group of both right and wrong rollouts
EXPLODED, COLLAPSED = 3.0, 0.05  # entropy, as a multiple of that of the first steps
UNJUDGED = 0.1  # part of a step's rollouts whose answers could not be judged
HOTTEST, COLDEST = 2.0, 0.25  # temperature that rollouts are sampled at


class RunHealth:
    """Looks at one row of a rollout step after the other; each remark is made once in a run.

    Whether completions have an answer at all is the reward slot's to see.
    """

    def __init__(self) -> None:
        self._first: list[float] = []
        self._idle = 0
        self._said: list[str] = []

    def remarks(self, row: Mapping[str, float]) -> list[str]:
        """What is new, with the remedy; mostly nothing."""
        looks = (self._signal, self._entropy, self._temperature, self._verdicts)
        found = dict(remark for look in looks for remark in look(row))
        new = {name: text for name, text in found.items() if name not in self._said}
        self._said += new
        return list(new.values())

    def _signal(self, row: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        self._idle = self._idle + 1 if row.get("rollout/mixed") == 0 else 0
        if self._idle >= IDLE_STEPS:
            yield (
                "signal",
                f"for {IDLE_STEPS} steps no prompt has had both right and wrong answers "
                f"({row['rollout/all_wrong']:.0%} all wrong, {row['rollout/all_right']:.0%} all "
                "right), and nothing is learnt from the others: take easier or harder problems, "
                "raise rollouts_per_prompt, or see what e3rl preflight says",
            )

    def _entropy(self, row: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        entropy = row.get("policy/entropy", math.nan)
        if not math.isfinite(entropy):
            return
        if len(self._first) < FIRST_STEPS:
            self._first.append(entropy)
            return
        start = math.fsum(self._first) / FIRST_STEPS
        told = f"entropy is {entropy:.3g} nats per token, and was {start:.3g} in the first steps"
        if entropy > EXPLODED * start:
            yield (
                "entropy up",
                f"{told}: the policy unlearns; start again, from an earlier checkpoint if you like "
                "(`e3rl export` makes it a model), with a lower module.optimizer.lr or entropy "
                "bonus, or a lower temperature",
            )
        elif entropy < COLLAPSED * start:
            yield (
                "entropy down",
                f"{told}: rollouts of a prompt are nearly alike, and little is left to learn from "
                "them; start again, from an earlier checkpoint if you like (`e3rl export` makes it "
                "a model), with temperature=entropy_target, loss/exploration=clip_higher or a "
                "lower module.optimizer.lr",
            )

    def _temperature(self, row: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        tau = row.get("rollout/temperature", 1.0)
        if not COLDEST <= tau <= HOTTEST:
            yield (
                "temperature",
                f"rollouts are sampled at temperature {tau:.2f}, outside of "
                f"{COLDEST} to {HOTTEST}: a rule that follows an entropy has lost it; look at "
                "temperature/target and policy/entropy, and choose another target, or "
                "temperature=fixed",
            )

    def _verdicts(self, row: Mapping[str, float]) -> Iterator[tuple[str, str]]:
        late, broken = row.get("reward/timeout", 0.0), row.get("reward/error", 0.0)
        rollouts = row.get("rollout/n", 0.0)
        if late + broken > UNJUDGED * rollouts:
            yield (
                "verdicts",
                f"{late:.0f} of {rollouts:.0f} answers took more than their time, and {broken:.0f} "
                "more than their memory, or broke what judges them: they earn 0 whatever they are; "
                "raise reward.deadline_s or reward.memory_limit_mb, or mend the reward",
            )

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self._first), "idle": self._idle, "said": list(self._said)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._idle = list(state["first"]), int(state["idle"])
        self._said = list(state["said"])

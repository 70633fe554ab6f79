"""What every rollout budget rule offers: decide, observe, state, metrics; and allocations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from e3rl.checkpoints.strict_state import require_keys


class StepProgress(Protocol):
    """What an allocation sees of a step that is under way, whoever samples it."""

    def tally(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rollouts of all earlier rounds by prompt (P,), and how many were right (P,)."""


Progress = TypeVar("Progress", contravariant=True)


class Allocation(Protocol[Progress]):
    """How many rollouts each prompt of a step gets, round by round; `Progress` is what it sees."""

    def next(self, batch: Progress) -> list[int] | None:
        """Rollouts to add per prompt (P,), or None when done; sees all earlier rounds' rewards."""

    def metrics(self) -> dict[str, float]:
        """What was decided, names relative to `budget/`; known once `next` has returned None."""


@dataclass(frozen=True)
class Decision:
    """A decided step: the allocation, the difficulty ranks of its prompts, and what becomes of
    those that get no rollout."""

    allocation: "Allocation[StepProgress]"
    ranks: NDArray[np.float64]  # (B,) in [0, 1), 0 = easiest, NaN = never seen
    requeue: bool = False  # they come again, first in the next steps, or else in the next pass
    always_right: NDArray[np.bool_] | None = None  # (B,) of ranked prompts; None = not known
    weights: NDArray[np.float64] | None = None  # (B,) mean 1, of prompts in the update; None = 1


class SingleRound:
    """The common allocation: all counts known beforehand.

    Args:
        counts: (B,) rollouts per prompt.
        metrics: what there is to say about the decision, names relative to `budget/`.
    """

    def __init__(
        self,
        counts: Sequence[int] | NDArray[np.int64],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        self.counts: list[int] = np.asarray(counts, dtype=np.int64).tolist()
        self._metrics = dict(metrics or {})
        self._done = False

    def next(self, batch: StepProgress) -> list[int] | None:
        if self._done:
            return None
        self._done = True
        return self.counts

    def metrics(self) -> dict[str, float]:
        return dict(self._metrics)


# What a step shows of its prompts beside rewards, each (B,) and NaN where unknown.
Traits = Mapping[str, NDArray[np.float64]]
TRAITS = ("prior", "length", "entropy", "disagreement")
NORMS = (
    *("grad_norm_right", "grad_norm_right_squared"),
    *("grad_norm_wrong", "grad_norm_wrong_squared"),
)


@runtime_checkable
class Describable(Protocol):
    """A rule that may want more of a finished step than rewards."""

    def describe(self, prompt_ids: Sequence[str], traits: Traits) -> None:
        """Learn traits of the prompts that were sampled, before `observe` is called.

        prior: difficulty rank that the data bring; length: mean tokens of the step's completions;
        entropy: mean surprise of their tokens in nats; disagreement: share of pairs of them that
        give different final answers; and `NORMS`, the means over right and over wrong rollouts of
        the norm of a rollout's gradient and of its square, which are NaN unless the rule is one
        that `NeedsGradNorms`.
        """


@runtime_checkable
class NeedsGradNorms(Protocol):
    """A rule that may want gradients measured, which takes a forward pass over all rollouts."""

    @property
    def needs_grad_norms(self) -> bool:
        """Whether `describe` must be told `NORMS`."""


@runtime_checkable
class NeedsTraits(Protocol):
    """A rule that may go by traits of the prompts, from the second step or pass on."""

    @property
    def needed_traits(self) -> tuple[str, ...]:
        """Which of `TRAITS` `describe` must be told."""


class Budget(Protocol):
    """A rule that spends `total` rollouts on the prompts of a step.

    Contract: an allocation of one round spends exactly `total`, one of several at most that; counts
    lie within the rule's bounds, do not depend on the order of the prompts, and are uniform before
    anything was observed.

    With look-ahead the next step is decided before the current one is observed, so metrics about
    a decision belong to its allocation, and those about an observation to the rule.
    """

    def decide(self, prompt_ids: Sequence[str], total: int, step: int, epoch: int) -> Decision:
        """The decision of a step; `step` counts rollout steps, `epoch` passes over the prompts, as
        short as `trainer.limit_train_batches` cuts them."""

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Learn from a finished step: one array of raw 0/1 rewards per prompt."""

    def state_dict(self) -> dict[str, Any]:
        """Builtins only (loadable with torch's `weights_only=True`)."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Strict: unknown or missing keys raise ValueError naming them."""

    def metrics(self) -> dict[str, float]:
        """What the step observed last has shown, names relative to `budget/`."""


class MemorylessBudget:
    """The part of a rule that goes by its step alone: it learns nothing, so it has no state."""

    def observe(self, prompt_ids: Sequence[str], rewards: Sequence[NDArray[np.float64]]) -> None:
        """Rewards matter within a step only."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        require_keys(type(self).__name__, state, ())

    def metrics(self) -> dict[str, float]:
        """Empty: nothing is learnt from a step."""
        return {}

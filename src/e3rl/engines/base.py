"""The protocol between the rollout callback and whatever samples tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from e3rl.batch import Rollout

if TYPE_CHECKING:
    from e3rl.policy.policy import Policy


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to sample. The seed alone decides its noise, whatever else is in the call."""

    prompt: int  # row of the prompt in the batch
    sample: int  # index within the group
    prompt_tokens: tuple[int, ...]
    temperature: float  # 0 = greedy
    seed: int
    max_new_tokens: int
    top_p: float = 1.0  # below 1: only the likeliest tokens that hold this probability together
    top_k: int = 0  # above 0: only this many likeliest tokens
    may_be_cut: bool = True  # by the engine's deadline, where it has one


def check_rollout(rollout: Rollout, request: RolloutRequest, vocabulary: int) -> None:
    """Raise what is wrong with a rollout that an engine returned for a request.

    RuntimeError for tokens that nobody can have sampled, FloatingPointError for log-probs that are
    not finite.
    """
    name = f"rollout {request.sample} of prompt row {request.prompt}"
    if not 0 < len(rollout.tokens) <= request.max_new_tokens:
        raise RuntimeError(
            f"{name}: the engine returned {len(rollout.tokens)} tokens where 1 to "
            f"{request.max_new_tokens} were asked for (max_new_tokens)"
        )
    if not 0 <= min(rollout.tokens) <= max(rollout.tokens) < vocabulary:
        wrong = next(token for token in rollout.tokens if not 0 <= token < vocabulary)
        raise RuntimeError(
            f"{name}: the engine returned token {wrong}, and the policy has {vocabulary}: does "
            "the engine serve another model?"
        )
    if not all(map(isfinite, rollout.logprobs)):
        raise FloatingPointError(
            f"{name}: the engine returned log-probs that are not finite; try float32 in its "
            "settings"
        )


class RolloutEngine(Protocol):
    """Lifecycle: `sync` before each use, `generate` any number of times, `close` at the end."""

    @property
    def holds_weights(self) -> bool:
        """Whether the engine samples from a copy of the weights that it took over in `sync`.

        Such an engine may go on sampling in another thread while the policy is being trained; one
        that reads the policy's live weights may not.
        """

    def sync(self, policy: "Policy", version: int, temperature: float = 1.0) -> None:
        """Make the engine sample from `policy` as it is now; a known version is a no-op.

        `temperature` is what rollouts are going to be sampled at, for engines that check
        themselves by sampling.

        Raises FloatingPointError for non-finite weights, before anything is taken over.
        """

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        """Yield every rollout as soon as it is finished, in any order."""

    def close(self) -> None:
        """Release everything; safe to call twice."""


@runtime_checkable
class HoldingEngine(Protocol):
    """An engine that can be given weights while it samples from others, to take them over later."""

    def hold(self, policy: "Policy", version: int, temperature: float = 1.0) -> Callable[[], None]:
        """Keep the policy's weights as they are now, which may go on training meanwhile.

        What it returns makes the engine sample from them, and is called once, by the thread that
        samples, between two calls of `generate`. `close` lets go of what nobody took over. All
        ranks call both, in the same order.

        Raises like `sync`.
        """


@runtime_checkable
class PlannedEngine(Protocol):
    """An engine whose memory depends on the longest rollout it may be asked for."""

    def plan_for(self, longest: int) -> None:
        """Have room for rollouts of `longest` tokens, the prompt's among them, from the next
        `sync` on."""


@runtime_checkable
class ManagedEngine(Protocol):
    """What an engine with memory and metrics of its own offers besides."""

    def rest(self) -> None:
        """Give memory back until the next `sync`, where the engine can."""

    def interrupt(self) -> None:
        """Have a `generate` that another thread is in end soon, with InterruptedError. Only
        `close` may follow."""

    def metrics(self) -> dict[str, float]:
        """Figures of the last sync and the calls since, under `engine/`."""

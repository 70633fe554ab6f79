"""Where completions end, and the rollouts that become of them; the same for all engines.

Beside its stop tokens a policy may have stop strings. Engines look for them here, token by token,
so that they end at the same one: the first by which the text of the completion holds a stop string.
That is the last token of the completion, with whatever else it spells. A stop string may lie within
one token or over many; prompt and prefill do not count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.policy.policy import Policy
from e3rl.policy.text import CONTEXT, UNFINISHED, Decode, continuation

BYTES = 4  # of the longest character in UTF-8


class StopFinder:
    """Follows one completion.

    Args:
        strings: what ends it, any of them.
        decode: text of tokens, special tokens included.
        prompt_tokens: what the completion follows.
    """

    def __init__(
        self, strings: Sequence[str], decode: Decode, prompt_tokens: Sequence[int]
    ) -> None:
        self._strings = strings
        self._decode = decode
        self._kept = max(len(string) for string in strings) - 1  # of the text so far
        self._text = ""  # its end, where a stop string may have begun
        self._before = list(prompt_tokens[-CONTEXT:])
        self._open: list[int] = []  # tokens that may yet be spelled otherwise

    def ends_with(self, token: int) -> bool:
        """Whether the next token of the completion completes a stop string."""
        self._open.append(token)
        text = self._text + continuation(self._decode, self._before, self._open)
        if any(string in text for string in self._strings):
            return True
        if not text.endswith(UNFINISHED) or len(self._open) >= BYTES:
            self._text = text[-self._kept :] if self._kept else ""
            self._before = (self._before + self._open)[-CONTEXT:]
            self._open = []
        return False


def stop_finder(policy: Policy, request: RolloutRequest) -> StopFinder | None:
    """Follows the completion of a request; None for a policy without stop strings."""
    if not policy.stop:
        return None
    return StopFinder(policy.stop, policy.spell, request.prompt_tokens)


@dataclass(frozen=True)
class FinishedRequest:
    """What an engine sampled for one request."""

    request: RolloutRequest
    tokens: list[int]
    logprobs: list[float]
    stopped: bool = False  # by a stop string, which the last token completes


def to_rollout(finished: FinishedRequest, policy: Policy, version: int) -> Rollout:
    """The rollout of a finished request; truncated where neither token nor string stopped it."""
    request, ids = finished.request, finished.tokens
    return Rollout(
        prompt=request.prompt,
        sample=request.sample,
        prompt_tokens=request.prompt_tokens,
        tokens=tuple(ids),
        logprobs=tuple(finished.logprobs),
        temperature=request.temperature,
        truncated=not finished.stopped and ids[-1] not in policy.stop_ids,
        text=policy.answer(request.prompt_tokens, ids),
        policy_version=version,
    )

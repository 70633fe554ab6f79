"""Ends rollouts early that have no answer in sight, and lets a few go on in their place.

After DUET (arXiv 2605.08441), whose rule is gated by a marker of the answer and reweighted by
importance; its budget of rollouts is another rule's matter (`budgets/`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutEngine, RolloutRequest
from e3rl.seeds import derive_seed

Answer = Callable[[Sequence[int], list[int]], str]  # text of a prompt's completion


class MarkerGatedAbort:
    """Stops rollouts that are open at a horizon without a marker, all but a random few.

    A rollout that has not ended after `horizon` tokens goes on where its text holds the marker, as
    an answer is being written. Of the others each goes on with probability `keep`, and then counts
    1/`keep` times in the update; the rest stays as long as it is, truncated, and counts 0 times.
    So the sum over rollouts is, but for the groups' baselines, unbiased for that of whole ones.
    What it is divided by under `token_mean` counts tokens as they were sampled, fewer than whole
    rollouts have; and stopped ones are wrong answers to budgets and accuracies. Who goes on is
    decided by the rollout's own seed. Both parts of a rollout are sampled from the same
    weights; the second begins with the first as its prompt, which engines keep in a cache.

    Args:
        horizon: tokens after which rollouts are looked at, below `max_new_tokens`.
        keep: share of those without a marker that go on, in (0, 1]; DUET's is 0.05.
        marker: text with which an answer begins, such as \\boxed.

    Raises ValueError for values outside of these.
    """

    def __init__(self, horizon: int, marker: str, keep: float = 0.05) -> None:
        if horizon < 1:
            raise ValueError(f"rollout.abort: horizon={horizon} must be 1 token or more")
        if not 0 < keep <= 1:
            raise ValueError(
                f"rollout.abort: keep={keep} must lie in (0, 1]: at 0 no rollout would stand for "
                "those that are stopped"
            )
        if not marker:
            raise ValueError("rollout.abort: marker is empty, which every text holds")
        self.horizon = horizon
        self.marker = marker
        self.keep = keep

    def check(self, max_new_tokens: int, stop: Sequence[str], prefill: str = "") -> None:
        """Raise ValueError where no rollout would be stopped, or one may end across the horizon."""
        if self.horizon >= max_new_tokens:
            raise ValueError(
                f"rollout.abort: horizon={self.horizon} is not below "
                f"max_new_tokens={max_new_tokens}: no rollout would be stopped"
            )
        if self.marker in prefill:
            raise ValueError(
                f"rollout.abort: policy.prefill={prefill!r} holds marker={self.marker!r}, with "
                "which every answer would begin: no rollout would be stopped; choose a marker that "
                "comes later, or leave it out of the prefill"
            )
        if stop:
            raise ValueError(
                f"rollout.abort: the policy has stop strings {list(stop)}, which may lie across "
                "the horizon and would be missed; use stop tokens alone"
            )

    def sample(
        self, engine: RolloutEngine, requests: Sequence[RolloutRequest], answer: Answer
    ) -> Iterator[Rollout]:
        """Yield every rollout once, whole or stopped, with its weight."""
        asked = {(request.prompt, request.sample): request for request in requests}
        firsts = [
            replace(request, max_new_tokens=min(self.horizon, request.max_new_tokens))
            for request in requests
        ]
        open_ones: dict[tuple[int, int], tuple[Rollout, float]] = {}
        for rollout in engine.generate(firsts):
            request = asked[rollout.prompt, rollout.sample]
            weight = self._weight(rollout, request)
            if weight is None:
                yield rollout
            elif weight == 0:
                yield replace(rollout, weight=0.0)
            else:
                open_ones[rollout.prompt, rollout.sample] = rollout, weight
        seconds = [
            self._continuation(asked[place], first) for place, (first, _) in open_ones.items()
        ]
        # Also without any: ranks that share an engine sample together.
        for second in engine.generate(seconds):
            first, weight = open_ones[second.prompt, second.sample]
            yield self._joined(first, second, weight, answer)

    def _weight(self, rollout: Rollout, request: RolloutRequest) -> float | None:
        """How often a rollout counts once it has gone on, 0 for stopped; None for ended ones."""
        at_horizon = len(rollout.tokens) == self.horizon < request.max_new_tokens
        if not rollout.truncated or not at_horizon:
            return None
        if self.marker in rollout.text:
            return 1.0
        rng = np.random.default_rng(derive_seed(request.seed, "abort"))
        return 1 / self.keep if rng.random() < self.keep else 0.0

    def _continuation(self, request: RolloutRequest, first: Rollout) -> RolloutRequest:
        return replace(
            request,
            prompt_tokens=request.prompt_tokens + first.tokens,
            max_new_tokens=request.max_new_tokens - self.horizon,
            seed=derive_seed(request.seed, "continued"),
        )

    def _joined(self, first: Rollout, second: Rollout, weight: float, answer: Answer) -> Rollout:
        tokens = first.tokens + second.tokens
        return replace(
            second,
            prompt_tokens=first.prompt_tokens,
            tokens=tokens,
            logprobs=first.logprobs + second.logprobs,
            text=answer(first.prompt_tokens, list(tokens)),
            weight=weight,
        )

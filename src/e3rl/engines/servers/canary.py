"""The canary of servers: each samples a few tokens, and all ranks compare them with the policy."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.canary import (
    Rounding,
    canary_gaps,
    canary_requests,
    check_canary,
    expected_rounding,
    first_logits,
    gap_metrics,
    gaps_from,
)
from e3rl.engines.completions import to_rollout
from e3rl.engines.progress import show_notice
from e3rl.engines.servers.client import HOTTEST, Server, ServerFacts, ServerLostError
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.servers.roll_call import State, adopt, state_of
from e3rl.engines.weight_checks import dtype_name
from e3rl.policy.policy import Policy
from e3rl.process.distributed import from_rank_0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Expected:
    """What servers are to sample by weights that they are going to have.

    Attributes:
        requests: of one token each.
        logits: of that token, (n, v).
        tolerance: nats at temperature 1.
    """

    requests: list[RolloutRequest]
    logits: Tensor
    tolerance: float


class ServerCanary:
    """Compares servers with the policy, on all ranks alike.

    Args:
        tolerance: as of `VLLMEngine`.
        insist: raises where a server is lost.
        progress: say so where servers sample their first tokens.
    """

    def __init__(
        self, tolerance: float | None, insist: Callable[[Fleet], None], progress: bool
    ) -> None:
        self._tolerance = tolerance
        self._insist = insist
        self._progress = progress
        self._first = True

    def compare(
        self, fleet: Fleet, weights: str, policy: Policy, version: int, temperature: float
    ) -> dict[str, float]:
        """Metrics of the servers' gaps from the policy, whose weights they have.

        Raises EngineMismatchError where one of them is another policy's, and ServerLostError where
        none is left.
        """
        started = time.monotonic()
        facts = [server.facts for server in fleet.there if server.facts is not None]
        rounding = _rounding_of(facts, policy)

        def requests_of(server: Server) -> list[RolloutRequest]:
            assert server.facts is not None
            return _requests(policy, [server.facts], temperature, rounding.tokens)

        sung = self._sing(fleet, weights, policy, version, requests_of)
        gaps = {url: canary_gaps(policy, rollouts) for url, rollouts in sung.items()}
        return self._judge(gaps, self._tolerance or rounding.tolerance, version, started)

    def expect(self, facts: Sequence[ServerFacts], policy: Policy, temperature: float) -> Expected:
        """What servers with these facts are to sample once they have the policy's weights; all
        ranks call this, with the same facts."""
        rounding = _rounding_of(facts, policy)
        tokens = rounding.tokens
        requests = _requests(policy, facts, temperature, tokens, completions=tokens)
        logits = first_logits(policy, requests)
        return Expected(requests, logits, self._tolerance or rounding.tolerance)

    def compare_expected(
        self, fleet: Fleet, weights: str, policy: Policy, version: int, expected: Expected
    ) -> dict[str, float]:
        """Like `compare`, with what was expected of weights that the policy no longer has."""
        started = time.monotonic()
        sung = self._sing(fleet, weights, policy, version, lambda server: expected.requests)
        gaps = {url: gaps_from(expected.logits, rollouts) for url, rollouts in sung.items()}
        return self._judge(gaps, expected.tolerance, version, started)

    def _sing(
        self,
        fleet: Fleet,
        weights: str,
        policy: Policy,
        version: int,
        requests_of: Callable[[Server], list[RolloutRequest]],
    ) -> dict[str, list[Rollout]]:
        """What each server samples, in the order of its requests, by its address."""

        def sing() -> tuple[State, dict[str, list[Rollout]]]:
            sung = {}
            for server in fleet.there:
                sample = partial(fleet.sample, weights=weights, stop_ids=(), servers=[server])
                try:
                    sampled = [
                        to_rollout(finished, policy, version)
                        for finished in sample(requests_of(server))
                    ]
                    sung[server.url] = sorted(sampled, key=lambda r: (r.prompt, r.sample))
                except ServerLostError as error:
                    log.warning("%s", error)
            if not fleet.there:
                self._insist(fleet)
            return state_of(fleet), sung

        with show_notice("vLLM samples its first tokens ...", self._progress and self._first):
            state, sung = from_rank_0(sing)
        self._first = False
        adopt(fleet, state)
        return sung

    def _judge(
        self, gaps: dict[str, list[Tensor]], tolerance: float, version: int, started: float
    ) -> dict[str, float]:
        metrics = gap_metrics([each for of_server in gaps.values() for each in of_server])
        for url, found in gaps.items():
            check_canary(found, tolerance, version, f"the server at {url}")
        return metrics | {"engine/canary_s": time.monotonic() - started}


def _rounding_of(facts: Sequence[ServerFacts], policy: Policy) -> Rounding:
    own = dtype_name(policy.model)
    names = (own, policy.computed_in or own, *(each.rounding for each in facts))
    on_cpu = policy.device.type == "cpu" and all(each.on_cpu for each in facts)
    return expected_rounding(names, on_cpu)


def _requests(
    policy: Policy,
    facts: Sequence[ServerFacts],
    temperature: float,
    tokens: int,
    **completions: int,
) -> list[RolloutRequest]:
    """What servers with these facts can all sample."""
    return canary_requests(
        policy,
        max(each.block_size for each in facts),
        min(each.max_length for each in facts),
        min(temperature, HOTTEST),
        tokens,
        **completions,
    )

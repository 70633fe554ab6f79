"""An engine of servers, whoever starts them.

The servers are vLLM's own; this process needs no vLLM where weights go by files. Every `sync` sends
all weights to all servers, drops their prefix caches and lets a canary compare each with the
policy. Each rollout is a request of its own with its own seed and temperature, as in
`engines/vllm.py`, and has the same tokens in float32 on a CPU.

With several training ranks all of them sample from all servers; rank 0 sends the weights. These may
be held back while servers sample from others (`hold`), and so is what the canary goes by.

A server that is lost while rollouts are sampled (killed, unreachable, started anew) leaves its
rollouts to the others, which is said once; where none is left the call raises ServerLostError. What
sends weights next takes up whatever is found at its address by then.
"""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.distributed import ProcessGroup

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import stop_finder, to_rollout
from e3rl.engines.progress import rollout_bar
from e3rl.engines.servers.canary import Expected, ServerCanary
from e3rl.engines.servers.client import (
    COLDEST,
    START,
    Server,
    ServerFacts,
    ServerLostError,
    check_temperatures,
)
from e3rl.engines.servers.files import common_dtype
from e3rl.engines.servers.fleet import Fleet, Tally
from e3rl.engines.servers.launch import served_name
from e3rl.engines.servers.roll_call import (
    State,
    adopt,
    look_for_servers,
    report_change,
    state_of,
)
from e3rl.engines.servers.transfer import HeldWeights, Weights, WeightTransfer, use_up
from e3rl.engines.vllm_loop import check_coldest, check_room
from e3rl.engines.vllm_settings import DEFAULTS, VLLMSettings, check_limits
from e3rl.engines.weight_checks import (
    Shapes,
    check_finite,
    check_shapes,
    expected_shapes,
    named_shapes,
    named_weights,
)
from e3rl.policy.policy import Policy
from e3rl.process.distributed import from_rank_0, new_group, on_group, rank

log = logging.getLogger(__name__)


class ServerEngine(ABC):
    """An engine of servers that are found at the first `sync`.

    Args:
        weights: how weights get there.
        settings: what servers are started with; a running one has its own.
        canary: compare a few tokens' log-probs of each server with the policy's after each sync.
        canary_tolerance: as of `VLLMEngine`.
        deadline_s: seconds after which a call's unfinished rollouts are cut and marked as
            truncated; calls with a request that may not be cut have none.
        at_once: rollouts of each rank that a server has at a time.
        wait_s: seconds that a sync waits for servers to start: for all of them at first, for any
            where none is left.
        progress: show a bar where generation takes more than a few seconds.
    """

    holds_weights = True
    remedy = START  # where servers come from

    def __init__(
        self,
        weights: WeightTransfer,
        settings: VLLMSettings = DEFAULTS,
        canary: bool = True,
        canary_tolerance: float | None = None,
        deadline_s: float | None = None,
        at_once: int = 256,
        wait_s: float = 0.0,
        progress: bool = True,
    ) -> None:
        check_limits(deadline_s, canary_tolerance)
        if at_once < 1:
            raise ValueError(f"engine.at_once={at_once}: use at least 1")
        if wait_s < 0:
            raise ValueError(f"engine.wait_s={wait_s}: use seconds >= 0")
        self.weights = weights
        self.settings = settings
        self.canary = ServerCanary(canary_tolerance, self._insist, progress) if canary else None
        self.deadline_s = deadline_s
        self.at_once = at_once
        self.wait_s = wait_s
        self.progress = progress
        self._fleet: Fleet | None = None
        self._shapes: Shapes = {}
        self._blueprint = ""
        self._policy: Policy | None = None  # what was synced; None where the next sync must act
        self._version = -1
        self._writes = 0  # to the policy's weights, as torch counts them
        self._named = ""  # what servers call the weights that they have
        self._metrics: dict[str, float] = {}
        self._counted = Tally()  # at the last sync
        self._preempted: dict[str, float] = {}  # by address, at the last sync
        self._held: list[HeldWeights] = []  # on rank 0, not taken over yet
        self._beside: ProcessGroup | None = None  # of the ranks' threads that sample
        self._known: list[ServerFacts] = []  # of servers there, as all ranks saw at the last sync
        self._dtype: torch.dtype | None = None  # theirs, if it is one

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        """Send the policy's weights to all servers, and let the canary compare.

        Servers that were lost are taken up again. All of them must be there at the first sync,
        at least one later on.

        Raises:
            FloatingPointError: for weights that are not finite.
            ValueError: for weights that are not those of the policy's configuration, a server
                for another model, or a temperature that servers do not sample at.
            ServerLostError: where no server is left.
            EngineMismatchError: where a server and the policy disagree afterwards.
        """
        writes = sum(parameter._version for parameter in policy.model.parameters())
        if policy is self._policy and (version, writes) == (self._version, self._writes):
            self._count()
            return
        started = time.monotonic()
        check_coldest([temperature], COLDEST, "vLLM's server")
        self._check(policy, version)  # all ranks meet here: none is sampling any more
        fleet = self._open(policy)
        self._find_servers(policy, version, writes)
        self._known = self._facts()
        self._dtype = common_dtype(fleet.there)
        weights, shapes = self._outgoing(policy)
        self._deliver(lambda servers: self.weights.send(fleet, servers, weights, shapes), weights)
        self._metrics["engine/sync_s"] = time.monotonic() - started
        if self.canary is not None:
            found = self.canary.compare(fleet, self._named, policy, version, temperature)
            self._metrics |= found
        self._begin_with(policy)

    def hold(self, policy: Policy, version: int, temperature: float = 1.0) -> Callable[[], None]:
        """Keep the policy's weights for servers that sample from others just now; what this returns
        sends them, and lets the canary compare with what the policy was like. Only after a `sync`.
        Raises like `sync`, and so does what it returns.

        The weights are copied: into files, or into this machine's memory.
        """
        writes = sum(parameter._version for parameter in policy.model.parameters())
        check_coldest([temperature], COLDEST, "vLLM's server")
        self._check(policy, version)
        self._beside = self._beside or new_group()
        expected = None
        if self.canary is not None:
            expected = self.canary.expect(self._known, policy, temperature)
        weights, _ = self._outgoing(policy)
        held: list[HeldWeights] = []

        def keep() -> None:
            try:
                held.append(self.weights.hold(self._dtype, weights))
                self._held.append(held[0])
            finally:
                use_up(weights)

        if rank() > 0:
            use_up(weights)
        from_rank_0(keep)
        return partial(self._take_over, policy, version, writes, held, expected)

    def _take_over(
        self,
        policy: Policy,
        version: int,
        writes: int,
        held: list[HeldWeights],
        expected: Expected | None,
    ) -> None:
        """Send weights that were held, on rank 0, from the thread that samples."""
        started, fleet = time.monotonic(), self._opened
        _, shapes = self._outgoing(policy)
        with on_group(self._beside):
            self._find_servers(policy, version, writes)
            self._deliver(
                lambda servers: self.weights.send_held(fleet, servers, held[0], shapes), iter(())
            )
            for each in held:
                self._held.remove(each)
                each.discard()
            self._metrics["engine/sync_s"] = time.monotonic() - started
            if self.canary is not None and expected is not None:
                self._metrics |= self.canary.compare_expected(
                    fleet, self._named, policy, version, expected
                )
        self._begin_with(policy)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        """Yield each rollout when it is finished, while servers go on with the others.

        Raises RuntimeError before the first `sync`, ServerLostError where no server is left, and
        ValueError for an empty prompt, one that leaves no room for its completion, and a
        temperature that servers do not take.
        """
        policy, fleet = self._policy, self._fleet
        if policy is None or fleet is None:
            raise RuntimeError("engine.generate was called before engine.sync")
        if not fleet.there:
            self._insist(fleet)
        check_room(requests, min(facts.max_length for facts in self._facts()))
        check_temperatures(requests)
        deadline_s = self.deadline_s if all(r.may_be_cut for r in requests) else None
        finder_of = partial(stop_finder, policy)
        with rollout_bar(len(requests), self.progress) as bar:
            for finished in fleet.sample(
                requests, self._named, policy.stop_ids, deadline_s, finder_of
            ):
                bar.update()
                yield to_rollout(finished, policy, self._version)

    def rest(self) -> None:
        """Servers have machines of their own."""
        return

    def interrupt(self) -> None:
        """End a `generate` that another thread is in."""
        if self._fleet is not None:
            self._fleet.interrupt()

    def metrics(self) -> dict[str, float]:
        """Seconds of the last sync and canary, canary gaps in nats, servers that take part; tokens
        per second of all of them, rollouts cut, and pre-emptions for want of cache (those of other
        ranks too), of all calls since."""
        if self._fleet is None:
            return dict(self._metrics)
        now, before = self._fleet.tally, self._counted
        seconds = max(now.seconds - before.seconds, 1e-9)
        preempted = self._fleet.count_preemptions().items()
        return self._metrics | {
            "engine/cut": float(now.cut - before.cut),
            "engine/preempted": sum(
                max(0.0, n - self._preempted.get(at, 0.0)) for at, n in preempted
            ),
            "engine/tokens_per_s": (now.tokens - before.tokens) / seconds,
        }

    def close(self) -> None:
        """End the connections; the servers go on. Safe to call twice."""
        fleet, self._fleet = self._fleet, None
        self._policy, self._named = None, ""
        for held in self._held:
            held.discard()
        self._held = []
        if fleet is None:
            return
        if rank() == 0:
            self.weights.close()
        fleet.close()

    def _start(self, policy: Policy) -> None:
        """Have servers started, where that is the engine's to do; rank 0 alone does."""
        return

    @abstractmethod
    def _addresses(self) -> Sequence[str]:
        """Where each server is by now, as rank 0 knows it."""

    def _last_words(self) -> Sequence[str]:
        """What servers have said that may explain why they do not answer."""
        return ()

    def _open(self, policy: Policy) -> Fleet:
        if self._fleet is None:

            def start() -> Sequence[str]:
                self._start(policy)
                return self._addresses()

            self._fleet = Fleet(from_rank_0(start), self.at_once, self.remedy)
            self._counted = Tally()
        return self._fleet

    @property
    def _opened(self) -> Fleet:
        assert self._fleet is not None
        return self._fleet

    def _check(self, policy: Policy, version: int) -> None:
        """Raise where weights cannot be sent."""
        blueprint = policy.model.config.to_json_string()
        if blueprint != self._blueprint:
            self._shapes, self._blueprint = expected_shapes(policy.model), blueprint
        check_shapes(policy.model, self._shapes)
        check_finite(policy.model, version)

    def _find(self, fleet: Fleet, model: str) -> State:
        """Look for servers that are not known, were lost, or have another address; rank 0 does."""
        first = not self._named
        known = [None if first or server.lost else server.url for server in fleet.servers]
        look_for_servers(fleet, model, self._addresses, first, self.wait_s, self.progress)
        if first or not fleet.there:
            self._insist(fleet)
        if not first:
            for server, before in zip(fleet.servers, known, strict=True):
                report_change(server, before)
        return state_of(fleet)

    def _find_servers(self, policy: Policy, version: int, writes: int) -> None:
        """Look for servers, which are going to have other weights and may not sample until then."""
        self._policy, self._version, self._writes = None, version, writes
        name = served_name(type(policy.model).__name__, self._shapes)
        adopt(self._opened, from_rank_0(partial(self._find, self._opened, name)))

    def _begin_with(self, policy: Policy) -> None:
        """Servers have the weights of a policy, and may sample."""
        self._metrics["engine/servers"] = float(len(self._opened.there))
        self._policy = policy
        self._count()

    def _count(self) -> None:
        """Figures of calls begin here."""
        self._counted = replace(self._opened.tally)
        self._preempted = self._opened.count_preemptions()

    def _outgoing(self, policy: Policy) -> tuple[Weights, Shapes]:
        """What servers are sent of a policy, whole and one after the other, and its shapes."""
        on_cpu = any(facts.on_cpu for facts in self._known)
        shapes = named_shapes(policy.model, self._shapes, tied_head=on_cpu)
        return named_weights(policy.model, tied_head=on_cpu), shapes

    def _deliver(self, load: Callable[[Sequence[Server]], None], weights: Weights) -> None:
        """Have all servers that are there load weights, which all ranks go through."""
        fleet, named = self._opened, f"{uuid.uuid4().hex[:12]}-{self._version}"

        def send() -> tuple[State, str]:
            first, servers = not self._named, fleet.there
            try:
                fleet.on_each(servers, Server.pause)
                load(fleet.there)
                fleet.on_each(fleet.there, lambda server: server.resume(named))
            finally:
                use_up(weights)
            if first or not fleet.there:
                self._insist(fleet)
            for server in servers:
                if server.lost:
                    log.warning("%s. The others go on without it", server.lost)
            return state_of(fleet), named

        if rank() > 0:
            use_up(weights)
        state, self._named = from_rank_0(send)
        adopt(self._opened, state)

    def _facts(self) -> list[ServerFacts]:
        """Of the servers that are there."""
        return [server.facts for server in self._opened.there if server.facts is not None]

    def _insist(self, fleet: Fleet) -> None:
        """Raise ServerLostError where a server is lost."""
        if lost := [server.lost for server in fleet.servers if server.lost]:
            raise ServerLostError("\n".join((*lost, *self._last_words())))

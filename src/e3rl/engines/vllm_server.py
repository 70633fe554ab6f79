"""Rollouts by vLLM servers on machines of their own.

The servers are vLLM's own, started beforehand by `e3rl serve` (`VLLMServerEngine`) or by Ray
(`engines/vllm_ray.py`); this process needs no vLLM where weights go by files. Every `sync` sends
all weights to all servers, drops their prefix caches and lets a canary compare each with the
policy. Each rollout is a request of its own with its own seed and temperature, as in
`engines/vllm.py`, and has the same tokens in float32 on a CPU.

With several training ranks all of them sample from all servers; rank 0 sends the weights.

A server that is lost while rollouts are sampled (killed, unreachable, started anew) leaves its
rollouts to the others, which is said once; where none is left the call raises ServerLostError. The
next `sync` with other weights takes up whatever is found at its address by then.
"""

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.canary import (
    canary_gaps,
    canary_requests,
    check_canary,
    expected_rounding,
    largest_quartile,
)
from e3rl.engines.completions import stop_finder, to_rollout
from e3rl.engines.progress import rollout_bar, show_notice
from e3rl.engines.servers.client import (
    HOTTEST,
    START,
    Server,
    ServerFacts,
    ServerLostError,
    check_temperatures,
)
from e3rl.engines.servers.fleet import Fleet, Tally, meet, report_change
from e3rl.engines.servers.launch import served_name
from e3rl.engines.servers.transfer import WeightTransfer
from e3rl.engines.vllm_loop import check_room
from e3rl.engines.vllm_settings import VLLMSettings
from e3rl.engines.weight_checks import (
    HEAD,
    Shapes,
    check_finite,
    check_shapes,
    dtype_name,
    expected_shapes,
    named_weights,
)
from e3rl.policy.policy import Policy
from e3rl.process.distributed import from_rank_0, rank

LOOK_S = 2.0  # between two looks whether a server has started
State = list[tuple[str, ServerFacts | None, str | None]]  # of servers: address, facts, why lost
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
        settings: VLLMSettings | None = None,
        canary: bool = True,
        canary_tolerance: float | None = None,
        deadline_s: float | None = None,
        at_once: int = 256,
        wait_s: float = 0.0,
        progress: bool = True,
    ) -> None:
        if deadline_s is not None and deadline_s <= 0:
            raise ValueError(f"engine.deadline_s={deadline_s}: use seconds > 0, or null for none")
        if canary_tolerance is not None and canary_tolerance <= 0:
            raise ValueError(f"engine.canary_tolerance={canary_tolerance}: use nats > 0, or null")
        if at_once < 1:
            raise ValueError(f"engine.at_once={at_once}: use at least 1")
        if wait_s < 0:
            raise ValueError(f"engine.wait_s={wait_s}: use seconds >= 0")
        self.weights = weights
        self.settings = settings or VLLMSettings()
        self.canary = canary
        self.canary_tolerance = canary_tolerance
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

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        """Send the policy's weights to all servers, and let the canary compare.

        Servers that were lost are taken up again. All of them must be there at the first sync,
        at least one later on.

        Raises:
            FloatingPointError: for weights that are not finite.
            ValueError: for weights that are not those of the policy's configuration, or a server
                for another model.
            ServerLostError: where no server is left.
            EngineMismatchError: where a server and the policy disagree afterwards.
        """
        writes = sum(parameter._version for parameter in policy.model.parameters())
        if policy is self._policy and (version, writes) == (self._version, self._writes):
            self._counted = replace(self._opened.tally)
            return
        started = time.monotonic()
        self._check(policy, version)  # all ranks meet here: none is sampling any more
        self._policy, self._version, self._writes = None, version, writes
        name = served_name(type(policy.model).__name__, self._shapes)
        fleet = self._open(policy)
        self._adopt(from_rank_0(partial(self._find, fleet, name)))
        self._transfer(policy)
        self._metrics["engine/sync_s"] = time.monotonic() - started
        if self.canary:
            self._compare(policy, temperature)
        self._metrics["engine/servers"] = float(len(fleet.there))
        self._policy = policy
        self._counted = replace(fleet.tally)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        """Yield each rollout when it is finished, while servers go on with the others.

        Raises RuntimeError before the first `sync`, ServerLostError where no server is left, and
        ValueError for an empty prompt, one that leaves no room for its completion, and a
        temperature that servers do not take.
        """
        policy, fleet = self._policy, self._fleet
        if policy is None or fleet is None:
            raise RuntimeError("engine.generate was called before engine.sync")
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
        per second of all of them, and rollouts cut, of all calls since."""
        if self._fleet is None:
            return dict(self._metrics)
        now, before = self._fleet.tally, self._counted
        seconds = max(now.seconds - before.seconds, 1e-9)
        return self._metrics | {
            "engine/cut": float(now.cut - before.cut),
            "engine/tokens_per_s": (now.tokens - before.tokens) / seconds,
        }

    def close(self) -> None:
        """End the connections; the servers go on. Safe to call twice."""
        fleet, self._fleet = self._fleet, None
        self._policy, self._named = None, ""
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
        """Look for servers that are not known, were lost, or have another address."""
        first, end = not self._named, time.monotonic() + self.wait_s
        known = [None if first or server.lost else server.url for server in fleet.servers]
        while True:
            for server, url in zip(fleet.servers, self._addresses(), strict=True):
                if server.url != url:
                    server.url, server.facts = url, None
            new = [each for each in fleet.servers if each.facts is None or each.lost]
            for server in new:
                server.lost = None
            fleet.on_each(fleet.there, partial(meet, model=model, new=new))
            enough = len(fleet.servers) if first else 1
            if len(fleet.there) >= enough or time.monotonic() >= end:
                break
            with show_notice("waiting for vLLM servers ...", self.progress):
                time.sleep(LOOK_S)
        if first or not fleet.there:
            self._insist(fleet)
        if not first:
            for server, before in zip(fleet.servers, known, strict=True):
                report_change(server, before)
        return self._state()

    def _transfer(self, policy: Policy) -> None:
        """Have all servers that are there load the policy's weights."""
        fleet, on_cpu = self._opened, any(facts.on_cpu for facts in self._facts())
        weights = named_weights(policy.model, tied_head=on_cpu)
        shapes = dict(self._shapes)
        if on_cpu and policy.model.config.get_text_config().tie_word_embeddings:
            shapes[HEAD] = tuple(policy.model.get_output_embeddings().weight.shape)
        named = f"{uuid.uuid4().hex[:12]}-{self._version}"

        def send() -> tuple[State, str]:
            first, servers = not self._named, fleet.there
            try:
                fleet.on_each(servers, Server.pause)
                self.weights.send(fleet, fleet.there, weights, shapes)
                fleet.on_each(fleet.there, lambda server: server.resume(named))
            finally:
                for _ in weights:  # sharded ones are gathered by all ranks at the same time
                    pass
            if first or not fleet.there:
                self._insist(fleet)
            for server in servers:
                if server.lost:
                    log.warning("%s. The others go on without it", server.lost)
            return self._state(), named

        if rank() > 0:
            for _ in weights:
                pass
        state, self._named = from_rank_0(send)
        self._adopt(state)

    def _compare(self, policy: Policy, temperature: float) -> None:
        """Let a canary sing on each server; raises EngineMismatchError where one does not."""
        started = time.monotonic()
        own = dtype_name(policy.model)
        names = (own, policy.computed_in or own, *(facts.dtype for facts in self._facts()))
        on_cpu = policy.device.type == "cpu" and all(facts.on_cpu for facts in self._facts())
        rounding = expected_rounding(names, on_cpu)

        def sing() -> tuple[State, dict[str, list[Rollout]]]:
            fleet, sung = self._opened, {}
            for server in fleet.there:
                try:
                    rollouts = self._sample_canary(server, policy, temperature, rounding.tokens)
                    sung[server.url] = rollouts
                except ServerLostError as error:
                    log.warning("%s", error)
            if not fleet.there:
                self._insist(fleet)
            return self._state(), sung

        first = "engine/canary_s" not in self._metrics
        with show_notice("vLLM samples its first tokens ...", self.progress and first):
            state, sung = from_rank_0(sing)
        self._adopt(state)
        every = {url: canary_gaps(policy, rollouts) for url, rollouts in sung.items()}
        gaps = [each for of_server in every.values() for each in of_server]
        self._metrics["engine/canary_mean"] = float(torch.cat(gaps).mean())
        self._metrics["engine/canary_quartile"] = largest_quartile(gaps)
        self._metrics["engine/canary_max"] = float(torch.cat(gaps).max())
        self._metrics["engine/canary_s"] = time.monotonic() - started
        tolerance = self.canary_tolerance or rounding.tolerance
        for url, found in every.items():
            check_canary(found, tolerance, self._version, f"the server at {url}")

    def _sample_canary(
        self, server: Server, policy: Policy, temperature: float, tokens: int
    ) -> list[Rollout]:
        assert server.facts is not None
        facts = server.facts
        requests = canary_requests(
            policy, facts.block_size, facts.max_length, min(temperature, HOTTEST), tokens
        )
        sampled = self._opened.sample(requests, self._named, stop_ids=(), servers=[server])
        return [to_rollout(finished, policy, self._version) for finished in sampled]

    def _facts(self) -> list[ServerFacts]:
        """Of the servers that are there."""
        return [server.facts for server in self._opened.there if server.facts is not None]

    def _insist(self, fleet: Fleet) -> None:
        """Raise ServerLostError where a server is lost."""
        if lost := [server.lost for server in fleet.servers if server.lost]:
            raise ServerLostError("\n".join((*lost, *self._last_words())))

    def _state(self) -> State:
        return [(each.url, each.facts, each.lost) for each in self._opened.servers]

    def _adopt(self, state: State) -> None:
        """Take over what rank 0 knows of the servers."""
        for server, (url, facts, lost) in zip(self._opened.servers, state, strict=True):
            server.url, server.facts, server.lost = url, facts, lost


class VLLMServerEngine(ServerEngine):
    """An engine of servers that somebody has started.

    Args:
        urls: of the servers, such as http://node7:8000.
        settings: what `e3rl serve` starts servers with; a running one has its own.
    """

    def __init__(
        self,
        urls: Sequence[str],
        weights: WeightTransfer,
        settings: VLLMSettings | None = None,
        canary: bool = True,
        canary_tolerance: float | None = None,
        deadline_s: float | None = None,
        at_once: int = 256,
        wait_s: float = 0.0,
        progress: bool = True,
    ) -> None:
        check_urls(urls)
        super().__init__(
            weights, settings, canary, canary_tolerance, deadline_s, at_once, wait_s, progress
        )
        self.urls = [url.rstrip("/") for url in urls]

    def _addresses(self) -> Sequence[str]:
        return self.urls


def check_urls(urls: Sequence[str]) -> None:
    """Raise ValueError for addresses that are none, or twice the same."""
    if not urls:
        raise ValueError(f"engine.urls=[]: give the addresses of servers; {START}")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"engine.urls: {url} is no address; write http://HOST:PORT")
    if len({url.rstrip("/") for url in urls}) < len(urls):
        raise ValueError(f"engine.urls={list(urls)}: give each server once")

"""Servers that sample together: an event loop in a thread of its own, and the calls to it.

Every server draws rollouts from one queue, as many at a time as it has room for, so that none is
idle while another has a queue. What a server was sampling when it was lost goes back to the queue.
"""

import asyncio
import logging
import math
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest, StopFinder
from e3rl.engines.servers.client import (
    NO_LOGPROB,
    START,
    Part,
    Server,
    ServerLostError,
    UnfitServerError,
    open_session,
)

CUT_AGAIN_S = 0.5  # requests on their way to a server when others are cut are cut by then
FinderOf = Callable[[RolloutRequest], StopFinder | None]
T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass
class Tally:
    """What all calls have sampled so far."""

    tokens: int = 0
    seconds: float = 0.0
    cut: int = 0  # rollouts that a deadline ended


@dataclass
class _Call:
    """The rollouts of one call of `Fleet.sample`."""

    servers: Sequence[Server]
    waiting: deque[RolloutRequest]
    stop_ids: Sequence[int]
    finder_of: FinderOf
    weights: str
    done: Callable[[FinishedRequest], None]
    running: dict[str, Server] = field(default_factory=dict)  # by the names of requests
    is_cut: bool = False


Item = FinishedRequest | asyncio.Task[None] | None


class Fleet:
    """Servers by their addresses.

    Args:
        urls: of the servers.
        at_once: requests that a server has at a time.
        remedy: where servers come from, for errors.
    """

    def __init__(self, urls: Sequence[str], at_once: int, remedy: str = START) -> None:
        self.at_once = at_once
        self.tally = Tally()
        self.interrupted = Event()
        self._name = uuid.uuid4().hex[:12]
        self._named = 0  # requests so far
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="servers", daemon=True)
        self._thread.start()
        self._session = self.call(open_session())
        self.servers = [Server(url, self._session, remedy) for url in urls]
        self._results: SimpleQueue[Item] = SimpleQueue()

    @property
    def there(self) -> list[Server]:
        """The servers that are not lost."""
        return remaining(self.servers)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the fleet's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def on_each(self, servers: Iterable[Server], act: Callable[[Server], Awaitable[None]]) -> None:
        """Have each of some servers do something at the same time; those that are lost on the way
        are marked."""

        async def one(server: Server) -> None:
            try:
                await act(server)
            except ServerLostError as error:
                server.lost = str(error)

        self.call(run_all([one(server) for server in servers]))

    def count_preemptions(self) -> dict[str, float]:
        """Rollouts that each server has put off since it started, by address; of those that say."""
        found: dict[str, float] = {}

        async def ask(server: Server) -> None:
            with suppress(ServerLostError, UnfitServerError, ValueError):
                found[server.url] = await server.preemptions()

        self.call(run_all([ask(server) for server in self.there]))
        return found

    def sample(
        self,
        requests: Sequence[RolloutRequest],
        weights: str,
        stop_ids: Sequence[int],
        deadline_s: float | None = None,
        finder_of: FinderOf = lambda request: None,
        servers: Sequence[Server] | None = None,
    ) -> Iterator[FinishedRequest]:
        """Yield every request when it is finished: by one of `stop_ids`, at its length, or where
        what `finder_of` gives for it finds a stop string.

        After `deadline_s` seconds what is unfinished is yielded as it stands; requests that have no
        token by then get one.

        Args:
            weights: name of the weights that servers must have.
            servers: who samples; None: all that are not lost.

        Raises:
            ServerLostError: where no server is left.
            InterruptedError: once `interrupted` is set.
            FloatingPointError: for log-probs that are not finite.
        """
        if self.interrupted.is_set():
            raise InterruptedError("rollouts were to be sampled")
        results = self._results = SimpleQueue()
        there = self.servers if servers is None else servers
        call = _Call(there, deque(requests), stop_ids, finder_of, weights, results.put)
        started = time.monotonic()
        work = self.call(_begin(self._sample(call, deadline_s), results.put))
        try:
            while isinstance(item := self._next(), FinishedRequest):
                yield item
            item.result()
        finally:
            self.call(_end(work))
            self.tally.seconds += time.monotonic() - started

    def interrupt(self) -> None:
        """End a call of `sample` that another thread is in."""
        self.interrupted.set()
        self._results.put(None)  # wakes who waits

    def close(self) -> None:
        """End the loop and its thread; safe to call twice."""
        if self._loop.is_closed():
            return
        self.call(self._session.close())
        self.call(self._loop.shutdown_default_executor())  # which looks names up
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _next(self) -> "FinishedRequest | asyncio.Task[None]":
        item = self._results.get()
        if item is None or self.interrupted.is_set():
            raise InterruptedError("rollouts were still being sampled")
        return item

    async def _sample(self, call: _Call, deadline_s: float | None) -> None:
        cutter = asyncio.create_task(self._cut(call, deadline_s))
        try:
            while call.waiting:
                if not (there := remaining(call.servers)):
                    raise ServerLostError("; ".join(str(server.lost) for server in call.servers))
                room = min(self.at_once, math.ceil(len(call.waiting) / len(there)))
                await run_all([self._serve(call, server, room) for server in there])
        finally:
            await _end(cutter)

    async def _serve(self, call: _Call, server: Server, room: int) -> None:
        """Have a server sample from the queue until that is empty, or the server is lost."""

        async def work() -> None:
            await server.check_weights(call.weights)
            await run_all([self._work(call, server) for _ in range(room)])

        working, watching = asyncio.create_task(work()), asyncio.create_task(server.watch())
        try:
            await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
            (working if working.done() else watching).result()
        except ServerLostError as error:
            server.lost = str(error)
            if remaining(call.servers):
                log.warning("%s. The others sample its rollouts", error)
        finally:
            await _end(working, watching)

    async def _work(self, call: _Call, server: Server) -> None:
        while call.waiting:
            request = call.waiting.popleft()
            try:
                finished = await self._finish(call, server, request)
            except (ServerLostError, asyncio.CancelledError):
                call.waiting.append(request)
                raise
            self.tally.tokens += len(finished.tokens)
            call.done(finished)

    async def _finish(
        self, call: _Call, server: Server, request: RolloutRequest
    ) -> FinishedRequest:
        """Have a server sample one request."""
        limit = 1 if call.is_cut else request.max_new_tokens
        part, stopped = await self._ask(call, server, request, limit)
        if part.reason == "abort":
            if not call.is_cut:
                raise ServerLostError(
                    f"the server at {server.url} ended requests: does another run use it as well?"
                )
            self.tally.cut += 1
            if not part.tokens:
                part, stopped = await self._ask(call, server, request, 1)
        server.check(part.versions or {call.weights}, call.weights)
        if NO_LOGPROB in part.logprobs:
            raise FloatingPointError(
                f"the server at {server.url} returned log-probs that are not finite for prompt row "
                f"{request.prompt}: its weights or activations are broken; try "
                "engine.settings.dtype=float32"
            )
        return FinishedRequest(request, part.tokens, part.logprobs, stopped)

    async def _ask(
        self, call: _Call, server: Server, request: RolloutRequest, limit: int
    ) -> tuple[Part, bool]:
        """What a server samples, and whether a stop string has ended it."""
        self._named += 1
        name = f"{self._name}-{self._named}"
        body = request_body(request, name, call.stop_ids, limit)
        finder = call.finder_of(request)
        if limit > 1:
            call.running[name] = server
        try:
            if finder is None:
                return await server.sample(body), False
            return await _follow(server, body, finder)
        finally:
            call.running.pop(name, None)

    async def _cut(self, call: _Call, deadline_s: float | None) -> None:
        """Once the time is up, end what is running, and keep what has not begun to one token."""
        if deadline_s is None:
            return
        await asyncio.sleep(deadline_s)
        call.is_cut = True
        self.tally.cut += len(call.waiting)
        while True:
            for server in self.there:
                names = [name for name, place in call.running.items() if place is server]
                with suppress(ServerLostError):  # whoever waits for its answers finds out as well
                    await server.abort(names)
            await asyncio.sleep(CUT_AGAIN_S)


def remaining(servers: Iterable[Server]) -> list[Server]:
    """Those that are not lost."""
    return [server for server in servers if server.lost is None]


async def _begin(
    work: Coroutine[Any, Any, None], done: Callable[["asyncio.Task[None]"], None]
) -> "asyncio.Task[None]":
    task = asyncio.create_task(work)
    task.add_done_callback(done)
    return task


async def run_all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines side by side; where one raises, the others are cancelled."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(*tasks)


async def _end(*tasks: "asyncio.Task[None]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(server: Server, body: Mapping[str, Any], finder: StopFinder) -> tuple[Part, bool]:
    """A streamed completion up to its first stop string, and whether it has one."""
    tokens: list[int] = []
    logprobs: list[float] = []
    part = None
    async with aclosing(server.stream(body)) as parts:
        async for part in parts:
            for token, logprob in zip(part.tokens, part.logprobs, strict=True):
                tokens.append(token)
                logprobs.append(logprob)
                if finder.ends_with(token):
                    return Part(tokens, logprobs, "stop", frozenset()), True
    if part is None or part.reason is None:
        raise ServerLostError(f"the server at {server.url} broke off in the middle of a rollout")
    return Part(tokens, logprobs, part.reason, part.versions), False


def request_body(
    request: RolloutRequest, name: str, stop_ids: Sequence[int], limit: int
) -> dict[str, Any]:
    """A request as `/inference/v1/generate` takes it; the policy's own stop tokens alone end it."""
    return {
        "request_id": name,
        "token_ids": list(request.prompt_tokens),
        "sampling_params": {
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "seed": request.seed,
            "max_tokens": limit,
            "logprobs": 0,
            "detokenize": False,
            "ignore_eos": True,
            "stop_token_ids": list(stop_ids),
        },
    }

"""Which servers of a fleet are there: looked for by rank 0, told to the others."""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from e3rl.engines.progress import show_notice
from e3rl.engines.servers.client import CONNECT_S, Server, ServerFacts
from e3rl.engines.servers.fleet import Fleet

LOOK_S = 2.0  # between two looks whether a server has started
State = list[tuple[str, ServerFacts | None, str | None]]  # of servers: address, facts, why lost
log = logging.getLogger(__name__)


def look_for_servers(
    fleet: Fleet,
    model: str,
    addresses: Callable[[], Sequence[str]],
    wait_for_all: bool,
    wait_s: float,
    progress: bool,
) -> None:
    """Greet servers that are new, were lost or have another address; see whether others are up.

    Args:
        model: what servers call the model that they must have.
        addresses: where each server is by now.
        wait_for_all: wait until all are there, and not for any alone.
        wait_s: seconds to wait for them.
        progress: say so meanwhile.

    Raises InterruptedError once the fleet is.
    """
    end = time.monotonic() + wait_s
    while True:
        for server, url in zip(fleet.servers, addresses(), strict=True):
            if server.url != url:
                server.url, server.facts = url, None
        new = [each for each in fleet.servers if each.facts is None or each.lost]
        for server in new:
            server.lost = None
        fleet.on_each(fleet.there, partial(meet, model=model, new=new))
        enough = len(fleet.servers) if wait_for_all else 1
        if len(fleet.there) >= enough or time.monotonic() >= end:
            return
        with show_notice("waiting for vLLM servers ...", progress):
            if fleet.interrupted.wait(LOOK_S):
                raise InterruptedError("servers were still being waited for")


async def meet(server: Server, model: str, new: Sequence[Server]) -> None:
    """Greet a server that is new; see whether another one is still up."""
    if server in new:
        await server.greet(model)
    else:
        await server.get("/health", CONNECT_S)


def report_change(server: Server, known: str | None) -> None:
    """Say of a server that was found at an address, or was lost (None), what has changed."""
    if server.lost is None and server.url != known:
        log.warning("the server at %s is back", server.url)
    elif server.lost is not None and known is not None:
        log.warning("%s. The others go on without it", server.lost)


def state_of(fleet: Fleet) -> State:
    """What is known of its servers."""
    return [(each.url, each.facts, each.lost) for each in fleet.servers]


def adopt(fleet: Fleet, state: State) -> None:
    """Take over what rank 0 knows of the servers."""
    for server, (url, facts, lost) in zip(fleet.servers, state, strict=True):
        server.url, server.facts, server.lost = url, facts, lost

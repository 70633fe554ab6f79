"""vLLM servers that Ray starts: an actor for each, in the bundles of a placement group."""

import logging
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from e3rl.engines.servers.client import ServerLostError
from e3rl.engines.servers.launch import Launch, server_environment
from e3rl.engines.servers.supervised import GRACE_S, Look, SupervisedServer
from e3rl.process.environment import prepare

STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
CALL_S = 5.0  # for an actor to answer
LOOPBACK = "127.0.0.1"
INSTALL = 'pip install -e ".[ray]", on all machines of the cluster'


class PlacementError(RuntimeError):
    """Ray has not the resources that servers need."""


@dataclass(frozen=True)
class Placement:
    """How many servers Ray starts, and where.

    Args:
        servers: of them, each in a bundle of its own.
        cpus: of each bundle, as Ray counts them.
        gpus: of each bundle; 0 for servers on CPUs.
        strategy: of the placement group, such as SPREAD over machines.
        address: of the cluster; None: RAY_ADDRESS, or one that runs on this machine, or else one
            that is started here and ends with the engine.
        place_s: seconds that the cluster may take to find the resources.
    """

    servers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    strategy: str = "PACK"
    address: str | None = None
    place_s: float = 60.0

    def __post_init__(self) -> None:
        if self.servers < 1:
            raise ValueError(f"engine.placement.servers={self.servers}: use at least 1")
        for name in ("cpus", "gpus", "place_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"engine.placement.{name}={getattr(self, name)}: use 0 or more")
        if not self.cpus + self.gpus:
            raise ValueError("engine.placement: give a server CPUs or GPUs, so that Ray places it")
        if self.strategy not in STRATEGIES:
            raise ValueError(
                f"engine.placement.strategy={self.strategy!r}: choose one of {STRATEGIES}"
            )

    @property
    def bundle(self) -> dict[str, float]:
        """What each server gets, as Ray names it."""
        return {name: n for name, n in (("CPU", self.cpus), ("GPU", self.gpus)) if n}


class ServerActor(SupervisedServer):
    """A server on the machine where Ray has put the actor.

    Args:
        trainer: address of the one machine that trains, where nobody else need reach the server;
            None: there are several.
    """

    def __init__(self, launch: Launch, trainer: str | None) -> None:
        import ray

        prepare()
        own = ray.util.get_node_ip_address()
        super().__init__(launch, LOOPBACK if own == trainer else own, server_environment())


class RayServers:
    """Servers by their actors: what `start` has made, `close` ends.

    Raises ModuleNotFoundError where Ray is not installed.
    """

    def __init__(self, placement: Placement) -> None:
        import ray

        self._ray = ray
        self._placement = placement
        self._connected = False  # by us
        self._group: Any = None
        self._actors: list[Any] = []
        self.looks: list[Look] = []  # the last ones

    def start(self, launch: Launch, wait_s: float, on_one_machine: bool) -> None:
        """Place the servers and wait until each has an address.

        Args:
            launch: what starts each.
            wait_s: seconds that their actors may take to start.
            on_one_machine: whether all training processes are.

        Raises:
            ConnectionError: where there is no cluster at the address.
            PlacementError: where the cluster has not the resources.
            ServerLostError: where an actor cannot be made, or not in time.
        """
        self._connect()
        self._place()
        trainer = self._ray.util.get_node_ip_address() if on_one_machine else None
        self._actors = [self._make(n, launch, trainer) for n in range(self._placement.servers)]
        end = time.monotonic() + wait_s
        for place, actor in enumerate(self._actors):
            waiting = actor.look.remote()
            try:
                left = max(0.0, end - time.monotonic())
                self.looks.append(self._ray.get(waiting, timeout=left))
            except self._ray.exceptions.RayError as error:
                raise ServerLostError(
                    f"Ray has not started the actor of server {place} (engine.wait_s={wait_s:g}; "
                    f"e3rl and vLLM must be installed on its machine): {error}"
                ) from error

    def look(self) -> list[Look]:
        """How servers do; of one whose actor does not answer what was known before."""
        asked = [actor.look.remote() for actor in self._actors]
        for place, waiting in enumerate(asked):
            with suppress(self._ray.exceptions.RayError):
                self.looks[place] = self._ray.get(waiting, timeout=CALL_S)
        return self.looks

    def close(self) -> None:
        """End the servers, their actors and the placement group, and a cluster that was started
        for them; safe to call twice."""
        ray, errors = self._ray, self._ray.exceptions.RayError
        actors, self._actors = self._actors, []
        group, self._group = self._group, None
        if not ray.is_initialized():  # whatever is asked of it would start one
            return
        for stopping in [actor.stop.remote() for actor in actors]:
            with suppress(errors):
                ray.get(stopping, timeout=2 * GRACE_S)
        for actor in actors:
            ray.kill(actor)
        if group is not None:
            ray.util.remove_placement_group(group)
        connected, self._connected = self._connected, False
        if connected:
            ray.shutdown()

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        address = self._placement.address
        try:
            with signals_kept():
                self._ray.init(
                    address,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except ConnectionError as error:
            raise ConnectionError(
                f"engine.placement.address={address}: no Ray cluster is there ({error}); null "
                "starts one on this machine"
            ) from error
        self._connected = True

    def _place(self) -> None:
        placement = self._placement
        bundles = [placement.bundle] * placement.servers
        self._group = self._ray.util.placement_group(bundles, strategy=placement.strategy)
        if self._group.wait(placement.place_s):
            return
        total, free = self._ray.cluster_resources(), self._ray.available_resources()
        raise PlacementError(
            f"Ray has not placed {placement.servers} servers with {counted(placement.bundle)} each "
            f"({placement.strategy}) within {placement.place_s:g} s. The cluster has "
            f"{counted(total)} on {len(self._ray.nodes())} machines, of which {counted(free)} are "
            "free: lower engine.placement.servers, cpus or gpus, or raise engine.placement.place_s"
        )

    def _make(self, bundle: int, launch: Launch, trainer: str | None) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        placement = self._placement
        options = {"num_cpus": placement.cpus, "num_gpus": placement.gpus, "max_restarts": -1}
        actor = self._ray.remote(ServerActor).options(**options, scheduling_strategy=place)
        return actor.remote(launch, trainer)


def check_ray() -> None:
    """Raise ModuleNotFoundError, with the command that installs it, where Ray is missing."""
    if find_spec("ray") is None:
        raise ModuleNotFoundError(f"engine=vllm_ray needs Ray, which is not installed: {INSTALL}")


def counted(resources: Mapping[str, float]) -> str:
    """CPUs and GPUs in words."""
    return " and ".join(f"{resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU"))


@contextmanager
def signals_kept() -> Iterator[None]:
    """Puts back what the process does at SIGTERM, which Ray sets to end it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)

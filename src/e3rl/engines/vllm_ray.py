"""Rollouts by vLLM servers that Ray starts, on actors in a placement group.

An engine of servers (`engines/servers/engine.py`) whose servers are its own: rank 0 has Ray start
them at the first `sync`, one on each bundle, and they end with the engine. A server that ends is
started anew by its actor, an actor by Ray; the next `sync` that finds it up takes it in.
"""

import socket
from collections.abc import Sequence
from typing import Any

from e3rl.engines.progress import show_notice
from e3rl.engines.servers.client import ServerLostError
from e3rl.engines.servers.engine import ServerEngine
from e3rl.engines.servers.fleet import Fleet
from e3rl.engines.servers.launch import plan_launch
from e3rl.engines.servers.ray_actors import Placement, RayServers, check_ray
from e3rl.engines.servers.supervised import ATTEMPTS
from e3rl.engines.servers.transfer import WeightTransfer
from e3rl.engines.vllm_settings import DEFAULTS, VLLMSettings
from e3rl.engines.weight_checks import dtype_name
from e3rl.policy.policy import Policy
from e3rl.process.distributed import all_gather


class VLLMRayEngine(ServerEngine):
    """An engine of servers that Ray starts at the first `sync`.

    Args:
        placement: how many servers, and where.
        settings: what they are started with.
        wait_s: as of `ServerEngine`; at first also for Ray to start their actors.

    Raises:
        ModuleNotFoundError: where Ray is not installed, with the command that installs it.
        ValueError: for servers that are split over more or fewer GPUs than they get.
    """

    remedy = "Ray starts another one, which a later sync takes up"

    def __init__(
        self,
        placement: Placement,
        weights: WeightTransfer,
        settings: VLLMSettings = DEFAULTS,
        canary: bool = True,
        canary_tolerance: float | None = None,
        deadline_s: float | None = None,
        at_once: int = 256,
        wait_s: float = 600.0,
        progress: bool = True,
    ) -> None:
        check_ray()
        super().__init__(
            weights, settings, canary, canary_tolerance, deadline_s, at_once, wait_s, progress
        )
        split = self.settings.tensor_parallel_size
        if placement.gpus and max(placement.gpus, 1) != split:
            raise ValueError(
                f"engine.placement.gpus={placement.gpus:g} and engine.settings."
                f"tensor_parallel_size={split}: give each server the GPUs that it is split over"
            )
        self.placement = placement
        self._longest: int | None = None  # tokens of a rollout, where somebody knows
        self._on_one_machine = True  # all training processes are
        self._servers: RayServers | None = None  # on rank 0
        self._started_for: tuple[Any, ...] = ()

    def plan_for(self, longest: int) -> None:
        """Have room for rollouts of `longest` tokens from the next `sync` on, which starts servers
        anew where they had less; `settings.max_model_len` goes before."""
        self._longest = max(longest, self._longest or 0)

    def close(self) -> None:
        """End the servers, and Ray where it was started for them. Safe to call twice."""
        super().close()
        self._end_servers()

    def _end_servers(self) -> None:
        servers, self._servers = self._servers, None
        if servers is not None:
            servers.close()

    def _open(self, policy: Policy) -> Fleet:
        model = policy.model
        wanted = (model.config.to_json_string(), dtype_name(model), self._longest)
        if self._fleet is not None and wanted != self._started_for:
            self.close()
        if self._fleet is None:
            self._started_for = wanted
            self._on_one_machine = len(set(all_gather(socket.gethostname()))) == 1
        return super()._open(policy)

    def _start(self, policy: Policy) -> None:
        on_cpu, dtype = not self.placement.gpus, dtype_name(policy.model)
        launch = plan_launch(
            policy.model, dtype, self.settings, self.weights, on_cpu, self._longest
        )
        self._end_servers()  # those of a start that failed
        self._servers = RayServers(self.placement)
        with show_notice("Ray starts vLLM servers ...", self.progress):
            self._servers.start(launch, self.wait_s, self._on_one_machine)

    def _addresses(self) -> Sequence[str]:
        assert self._servers is not None
        looks = self._servers.look()
        failed = [look for look in looks if look.failures >= (ATTEMPTS if self._named else 1)]
        if failed and (not self._named or len(failed) == len(looks)):
            raise ServerLostError(
                f"the server at {failed[0].url} ended before it answered:\n{failed[0].said}"
            )
        return [look.url for look in looks]

    def _last_words(self) -> Sequence[str]:
        looks = self._servers.looks if self._servers is not None else []
        return [f"The server at {each.url} said:\n{each.said}" for each in looks if each.said]

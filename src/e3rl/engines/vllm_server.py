"""Rollouts by vLLM servers on machines of their own, which `e3rl serve` starts."""

from collections.abc import Sequence

from e3rl.engines.servers.client import START
from e3rl.engines.servers.engine import ServerEngine
from e3rl.engines.servers.transfer import WeightTransfer
from e3rl.engines.vllm_settings import DEFAULTS, VLLMSettings


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
        settings: VLLMSettings = DEFAULTS,
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

"""What is said to one vLLM server, over HTTP.

The server is vLLM's own (`python -m vllm.entrypoints.openai.api_server`, version 0.32) in its
development mode: token ids go in and out by `/inference/v1/generate`, weights and caches are
steered by the routes that vLLM has for reinforcement learning.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from e3rl.engines.base import RolloutRequest
from e3rl.engines.vllm_loop import check_coldest

GENERATE = "/inference/v1/generate"
NO_LOGPROB = -9999.0  # what the server says in the place of a log-prob that is not finite
NAMED = "generate-tokens-"  # what the server puts before the name of a request
FLOAT8 = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel")  # what vLLM calls it
PREEMPTIONS = "vllm:num_preemptions_total"
HOTTEST = 2.0  # temperature that it takes
COLDEST = 0.01  # temperature above 0 that it does not raise to this one
CONNECT_S = 30.0
KEEP_S = 2.0  # that a connection waits for more; the server closes it after 5
CONTROL_S = 1800.0  # for an answer that may take as long as loading weights does
HEALTH_EVERY_S = 10.0
SHOWN = 2000  # characters of what a server says of an error
HEALTH_FAILURES = 3  # in a row: a machine that is gone closes no connection
START = "`e3rl serve` with the arguments of the run starts one"


NETWORK_ERRORS = (
    *(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError),
    *(TimeoutError, ConnectionError),
)


class ServerLostError(RuntimeError):
    """A server does not answer, or does no longer sample from the weights that it was given."""


class UnfitServerError(ValueError):
    """A server for another model, or with settings that no run can use."""


@dataclass(frozen=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        model: name that it serves the model under.
        dtype: precision of weights and activations, such as "float32".
        block_size: tokens of a block of its KV cache.
        max_length: tokens of prompt and completion together.
        devices: processes of the server that hold weights.
        rounding: the coarsest precision that it computes in: its dtype, or "float8".
    """

    model: str
    dtype: str
    on_cpu: bool
    block_size: int
    max_length: int
    devices: int
    rounding: str


@dataclass(frozen=True)
class Part:
    """Tokens of a completion: all of them, or what came next of a streamed one."""

    tokens: list[int]
    logprobs: list[float]
    reason: str | None  # why it ended: "stop", "length", "abort"; None while it goes on
    versions: frozenset[str]  # names of the weights that sampled it, where it has ended


class Server:
    """One server by its address; `session` belongs to the event loop that calls it.

    Attributes:
        facts: what it has said of itself since it was last found.
        lost: why nothing is asked of it until the next sync; None where all is well.
        remedy: where another one comes from.
    """

    def __init__(self, url: str, session: aiohttp.ClientSession, remedy: str = START) -> None:
        self.url = url.rstrip("/")
        self.remedy = remedy
        self._session = session
        self.facts: ServerFacts | None = None
        self.lost: str | None = None

    async def greet(self, model: str) -> None:
        """Ask the server what it is, and check that it serves `model` as a run needs it.

        Raises ServerLostError where it does not answer, UnfitServerError where it does not fit.
        """
        listed = await self.get("/v1/models", CONNECT_S)
        found = str(listed["data"][0]["id"])
        if found != model:
            raise UnfitServerError(
                f"the server at {self.url} serves {found}, the policy is {model}: {self.remedy}"
            )
        info = await self.get("/server_info", CONTROL_S, config_format="json")
        world = await self.get("/get_world_size", CONNECT_S)
        await self.abort([])  # has it that route?
        self.facts = read_facts(self.url, found, info["vllm_config"], int(world["world_size"]))

    async def preemptions(self) -> float:
        """Rollouts that it has put off for want of cache since it started, by vLLM's counter."""
        async with self._asked("GET", "/metrics", CONNECT_S) as answer:
            lines = (await answer.text()).splitlines()
        found = (line for line in lines if line.startswith(PREEMPTIONS))
        return sum(float(line.rpartition(" ")[2]) for line in found)

    async def get(self, path: str, seconds: float, **parameters: str) -> Any:
        return await self._ask("GET", path, seconds, params=parameters)

    async def post(self, path: str, body: Any = None, **parameters: str) -> Any:
        return await self._ask("POST", path, CONTROL_S, json=body, params=parameters)

    async def call_workers(self, method: str, **arguments: Any) -> None:
        """Have every process of the server that holds weights call a method of its own."""
        await self.post("/collective_rpc", {"method": method, "kwargs": arguments})

    async def pause(self) -> None:
        """End what it is sampling, and begin nothing new until `resume`."""
        await self.post("/pause", mode="abort")

    async def resume(self, weights: str) -> None:
        """Drop the prefix cache, name the weights that it has, and let it sample.

        Raises ServerLostError where the cache cannot be dropped.
        """
        if not (await self.post("/reset_prefix_cache"))["success"]:
            raise ServerLostError(f"the server at {self.url} kept its prefix cache over a sync")
        await self.post("/update_weight_version", {"new_version": weights})
        await self.post("/resume")

    async def check_weights(self, weights: str) -> None:
        """Raise ServerLostError where it does not have the weights of this name."""
        self.check({(await self.get("/weight_info", CONNECT_S))["weight_version"]}, weights)

    def check(self, found: Set[str], weights: str) -> None:
        """The same of names that it has told."""
        if found != {weights}:
            raise ServerLostError(
                f"the server at {self.url} was started anew, or got the weights of another run"
            )

    async def sample(self, body: Mapping[str, Any]) -> Part:
        """A whole completion."""
        return read_part(await self._ask("POST", GENERATE, None, json=body))

    async def stream(self, body: Mapping[str, Any]) -> AsyncGenerator[Part, None]:
        """A completion in parts, as they are sampled; leaving the iterator ends it."""
        whole = {**body, "stream": True}
        async with self._asked("POST", GENERATE, None, json=whole) as answer:
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line.removeprefix(b"data: "))
                    if "error" in event:
                        raise self._broken(event["error"])
                    if event["choices"]:
                        yield read_part(event)

    async def abort(self, names: Sequence[str]) -> None:
        """End requests; each is then answered with what it has."""
        ids = [NAMED + name for name in names]
        await self.post("/inference/v1/abort_requests", {"request_ids": ids})

    async def watch(self) -> None:
        """Return never; raises ServerLostError where the server has not answered for a while."""
        failures = 0
        while True:
            await asyncio.sleep(HEALTH_EVERY_S)
            try:
                await self.get("/health", HEALTH_EVERY_S)
                failures = 0
            except ServerLostError:
                failures += 1
                if failures == HEALTH_FAILURES:
                    raise

    async def _ask(self, method: str, path: str, seconds: float | None, **content: Any) -> Any:
        async with self._asked(method, path, seconds, **content) as answer:
            text = await answer.text()
            return json.loads(text) if text else None

    @asynccontextmanager
    async def _asked(
        self, method: str, path: str, seconds: float | None, **content: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer.

        Raises:
            ServerLostError: where the server is gone or broken.
            UnfitServerError: for a route that it does not have.
            ValueError: for what it does not accept, in its own words.
        """
        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        url = self.url + path
        try:
            async with self._session.request(method, url, timeout=limit, **content) as answer:
                if answer.status >= 400:
                    raise self._refusal(path, answer.status, (await answer.text())[:SHOWN])
                yield answer
        except NETWORK_ERRORS as error:
            why = str(error) or type(error).__name__
            raise ServerLostError(
                f"the server at {self.url} does not answer ({why}): {self.remedy}"
            ) from error

    def _refusal(self, path: str, status: int, said: str) -> Exception:
        if status == 404:
            return UnfitServerError(
                f"the server at {self.url} has no {path}: start it as `e3rl serve` does, with "
                "VLLM_SERVER_DEV_MODE=1 in its environment and --enable-scale-out"
            )
        if status < 500:
            return ValueError(f"the server at {self.url} refuses {path}: {said}")
        return self._broken(said)

    def _broken(self, said: object) -> ServerLostError:
        return ServerLostError(f"the server at {self.url} is broken: {said}")


async def open_session() -> aiohttp.ClientSession:
    """A session of the running event loop, with as many connections as are asked for."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S)
    return aiohttp.ClientSession(connector=connector, read_bufsize=2**20)


def read_facts(url: str, model: str, config: Mapping[str, Any], devices: int) -> ServerFacts:
    """What matters of a server's configuration (vLLM's `VllmConfig` as it is written to JSON).

    Raises UnfitServerError for settings that no run can use.
    """
    settings, on_cpu = config["model_config"], config["device_config"]["device"] == "cpu"
    if settings["logprobs_mode"] != "processed_logprobs":
        raise UnfitServerError(
            f"the server at {url} gives {settings['logprobs_mode']}, and training needs those of "
            "the distribution sampled from: start it with --logprobs-mode processed_logprobs"
        )
    if on_cpu and config["scheduler_config"]["enable_chunked_prefill"]:
        raise UnfitServerError(
            f"the server at {url} computes prompts in parts, where seeds decide nothing on CPUs: "
            "start it with --no-enable-chunked-prefill"
        )
    dtype = str(settings["dtype"]).removeprefix("torch.")
    method = settings.get("quantization")
    if method is not None and method not in FLOAT8:
        raise UnfitServerError(
            f"the server at {url} has weights that are quantized by {method}, and nothing is known "
            f"of how far that is from the policy: start it without, or by one of {FLOAT8}"
        )
    of_8_bits = method or str(config["cache_config"].get("cache_dtype")).startswith("fp8")
    return ServerFacts(
        model=model,
        dtype=dtype,
        on_cpu=on_cpu,
        block_size=int(config["cache_config"]["block_size"]),
        max_length=int(settings["max_model_len"]),
        devices=devices,
        rounding="float8" if of_8_bits else dtype,
    )


def read_part(answer: Mapping[str, Any]) -> Part:
    """The tokens of an answer of `/inference/v1/generate`, whole or streamed."""
    (choice,) = answer["choices"]
    content = (choice["logprobs"] or {}).get("content") or []
    return Part(
        tokens=choice["token_ids"] or [],
        logprobs=[each["logprob"] for each in content],
        reason=choice["finish_reason"],
        versions=frozenset(span["version"] for span in choice.get("weight_versions") or ()),
    )


def check_temperatures(requests: Sequence[RolloutRequest]) -> None:
    """Raise ValueError for a temperature that vLLM's server does not take, or changes."""
    check_coldest((request.temperature for request in requests), COLDEST, "vLLM's server")
    hottest = max((request.temperature for request in requests), default=0.0)
    if hottest > HOTTEST:
        raise ValueError(
            f"temperature {hottest:g}: vLLM's server samples at up to {HOTTEST:g}; lower the "
            "settings of temperature, or their bounds, or sample with engine=vllm"
        )

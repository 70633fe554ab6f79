"""A stand-in for vLLM's server: its routes over HTTP, and a policy that transformers samples from.

It starts with made-up weights and loads what `/collective_rpc reload_weights` names, so that a
test sees whether weights arrived. Time per token and faults are up to the test.
"""

import asyncio
import copy
import json
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock, Thread

import torch
from aiohttp import web
from safetensors.torch import load_file

from e3rl.engines.base import RolloutRequest
from e3rl.engines.servers.launch import served_name
from e3rl.engines.transformers import TransformersEngine
from e3rl.engines.weight_checks import expected_shapes
from e3rl.policy.policy import Policy


class StandIn:
    """A server on a port of its own, or on `port`; `kill` ends it as SIGKILL would.

    Args:
        policy: whose architecture it has.
        token_s: seconds that it takes for a token.
    """

    def __init__(self, policy: Policy, token_s: float = 0.0, port: int = 0) -> None:
        self.policy = copy.deepcopy(policy)
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.mul_(0.5)
        name = served_name(type(policy.model).__name__, expected_shapes(policy.model))
        self.token_s = token_s
        self.gate = Event()  # while it is not set, no rollout is answered
        self.gate.set()
        self.model = name
        self.version = "default"
        self.dev_mode = self.scale_out = True
        self.takes_weights = True
        self.refusal = "no such folder"
        self.config = {
            "model_config": {
                "dtype": "torch.float32",
                "logprobs_mode": "processed_logprobs",
                "max_model_len": 256,
            },
            "cache_config": {"block_size": 32},
            "scheduler_config": {"enable_chunked_prefill": False},
            "device_config": {"device": "cpu"},
        }
        self.calls: Counter[str] = Counter()
        self.temperatures: list[float] = []
        self.read: list[tuple[str, list[str]]] = []  # folders of weights, and what was in them
        self.paused = False
        self.preempted = 0
        self.tells_metrics = True
        self.running: dict[str, asyncio.Event] = {}
        self._engine = TransformersEngine(progress=False)
        self._synced = 0
        self._killing = Lock()  # a timer and the end of a test may both kill
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start(port))

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _start(self, port: int) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Close all connections in the middle of whatever they are at; safe to call twice."""

        async def end() -> None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()
            await self._runner.cleanup()

        with self._killing:
            if self._loop.is_closed():
                return
            self._run(end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.calls[path] += 1
        body = await request.json() if request.can_read_body else {}
        if path == "/health":
            return web.Response()
        if path == "/metrics" and self.tells_metrics:
            name = 'vllm:num_preemptions_total{engine="0",model_name="m"}'
            return web.Response(text=f"# HELP {name[:26]} ...\n{name} {self.preempted:.1f}\n")
        if path == "/v1/models":
            return web.json_response({"data": [{"id": self.model}]})
        if path.startswith("/inference/v1/") and self.scale_out:
            if path.endswith("abort_requests"):
                for name in body["request_ids"]:
                    if name in self.running:
                        self.running[name].set()
                return web.Response()
            return await self._generate(request, body)
        answers = {
            "/server_info": lambda: {"vllm_config": self.config},
            "/get_world_size": lambda: {"world_size": 1},
            "/weight_info": lambda: {"weight_version": self.version},
            "/pause": lambda: self._pause(True),
            "/resume": lambda: self._pause(False),
            "/reset_prefix_cache": lambda: {"success": not self.running},
            "/update_weight_version": lambda: self._name(body["new_version"]),
            "/collective_rpc": lambda: self._workers(body),
        }
        if path not in answers or not self.dev_mode:
            return web.json_response({"error": "Not Found"}, status=404)
        answer = answers[path]()
        return answer if isinstance(answer, web.Response) else web.json_response(answer)

    def _pause(self, paused: bool) -> dict[str, str]:
        self.paused = paused
        return {"status": "paused" if paused else "resumed"}

    def _name(self, version: str) -> dict[str, bool]:
        self.version = version
        return {"success": True}

    def _workers(self, body):
        if body["method"] == "reload_weights":
            assert self.paused
            folder = Path(body["kwargs"]["weights_path"])
            if not self.takes_weights or not folder.is_dir():
                return web.json_response({"error": {"message": self.refusal}}, status=500)
            self.read.append((str(folder), sorted(path.name for path in folder.iterdir())))
            weights = {}
            for path in folder.glob("*.safetensors"):
                weights |= load_file(path)
            self.policy.model.load_state_dict(weights, strict=False)
            self._synced += 1
        return {"results": [None]}

    async def _generate(self, web_request, body):
        given, name = body["sampling_params"], f"generate-tokens-{body['request_id']}"
        if given["temperature"] > 2:
            error = {"error": {"message": "temperature must be in [0, 2]"}}
            return web.json_response(error, status=400)
        self.temperatures.append(given["temperature"])
        aborted = self.running[name] = asyncio.Event()
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.01)
            rollout = self._sample(body["token_ids"], given)
            tokens = self._up_to_stop(rollout.tokens, given["stop_token_ids"])
            if body.get("stream"):
                return await self._stream(web_request, tokens, rollout.logprobs)
            seen = 0
            while seen < len(tokens) and not aborted.is_set():
                await asyncio.sleep(self.token_s)
                seen += 1
            reason = "abort" if seen < len(tokens) else self._reason(tokens, given)
            choice = self._choice(tokens[:seen], rollout.logprobs, reason)
            return web.json_response({"choices": [choice]})
        finally:
            self.running.pop(name, None)

    async def _stream(self, web_request, tokens, logprobs):
        response = web.StreamResponse()
        await response.prepare(web_request)
        for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=False), start=1):
            await asyncio.sleep(self.token_s)
            reason = "length" if place == len(tokens) else None
            event = {"choices": [self._choice([token], [logprob], reason)]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def _sample(self, ids, given):
        request = RolloutRequest(
            prompt=0,
            sample=0,
            prompt_tokens=tuple(ids),
            temperature=given["temperature"],
            seed=given["seed"],
            max_new_tokens=given["max_tokens"],
            top_p=given["top_p"],
            top_k=given["top_k"],
        )
        self._engine.sync(self.policy, self._synced)
        (rollout,) = self._engine.generate([request])
        return rollout

    def _up_to_stop(self, tokens, stop_ids):
        end = next((n for n, token in enumerate(tokens, 1) if token in stop_ids), len(tokens))
        return list(tokens[:end])

    def _reason(self, tokens, given):
        return "stop" if tokens[-1] in given["stop_token_ids"] else "length"

    def _choice(self, tokens, logprobs, reason):
        values = [{"token_id": t, "logprob": x} for t, x in zip(tokens, logprobs, strict=False)]
        span = {"version": self.version, "start": 0, "end": len(tokens)}
        return {
            "finish_reason": reason,
            "token_ids": list(tokens),
            "logprobs": {"content": values},
            "weight_versions": [span] if reason and tokens else None,
        }


@contextmanager
def stand_ins(policy: Policy, n: int, **settings):
    """Several stand-ins, ended afterwards."""
    servers = [StandIn(policy, **settings) for _ in range(n)]
    try:
        yield servers
    finally:
        for server in servers:
            server.kill()

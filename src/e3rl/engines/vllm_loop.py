"""Requests through a vLLM engine step by step, so that each rollout is out when it is finished.

`LLM.generate` returns everything at the end, and an exception within it leaves requests in the
engine that the next call never gets past. Here a deadline is polled between steps, and whatever
ends a call early takes its requests out again.
"""

import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np
import torch

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.randomness import preserve_torch_rng
from e3rl.policy.policy import Policy

# vLLM's sampling parameters of a request, given the tokens that end it.
SamplingOf = Callable[[RolloutRequest, Sequence[int]], Any]


@dataclass(frozen=True)
class FinishedRequest:
    """What vLLM sampled for one request."""

    request: RolloutRequest
    tokens: list[int]
    logprobs: list[float]


class StepLoop:
    """Runs requests on an in-process vLLM engine; counts tokens and the seconds they took.

    Args:
        engine: vLLM's `LLMEngine`.
        sampling_of: builds vLLM's sampling parameters of a request.
    """

    def __init__(self, engine: Any, sampling_of: SamplingOf) -> None:
        self._engine = engine
        self._sampling_of = sampling_of
        self.tokens = 0
        self.seconds = 0.0
        self.cut = 0  # rollouts that a deadline ended
        self.interrupted = Event()  # set by another thread to end a call at its next step

    def run(
        self,
        requests: Sequence[RolloutRequest],
        stop_ids: Sequence[int],
        deadline_s: float | None = None,
    ) -> Iterator[FinishedRequest]:
        """Yield every request when it is finished.

        After `deadline_s` seconds in the engine, what is unfinished is yielded as it stands;
        requests that have no token by then get one. Raises InterruptedError once `interrupted`.
        """
        self.abort()
        pending: dict[str, tuple[str, RolloutRequest]] = {}
        spent = self.seconds
        try:
            with self._timed():
                for number, request in enumerate(requests):
                    prompt = {"type": "token", "prompt_token_ids": list(request.prompt_tokens)}
                    own = self._engine.add_request(
                        str(number), prompt, self._sampling_of(request, stop_ids)
                    )
                    pending[str(number)] = own, request
            while pending:
                if self.interrupted.is_set():
                    raise InterruptedError(f"{len(pending)} rollouts were still being sampled")
                if deadline_s is not None and self.seconds - spent > deadline_s:
                    yield from self._cut([*pending.values()], stop_ids)
                    return
                with self._timed():
                    outputs = self._engine.step()
                for output in outputs:
                    _, request = pending.pop(output.request_id)
                    sampled = output.outputs[0]
                    yield self._finished(request, sampled.token_ids, sampled.logprobs)
        finally:
            if pending:
                self._engine.abort_request([own for own, _ in pending.values()], internal=True)

    def abort(self) -> None:
        """Take out what an earlier call has left behind: its generator may never be resumed."""
        left = list(self._engine.output_processor.request_states)
        if left:
            self._engine.abort_request(left, internal=True)

    def _cut(
        self, pending: list[tuple[str, RolloutRequest]], stop_ids: Sequence[int]
    ) -> Iterator[FinishedRequest]:
        states = self._engine.output_processor.request_states
        partial, untouched = [], []
        for own, request in pending:
            tokens = states[own].detokenizer.output_token_ids
            if tokens:
                logprobs = states[own].logprobs_processor.logprobs
                partial.append(self._finished(request, tokens, logprobs))
            else:
                untouched.append(replace(request, max_new_tokens=1))
        self.abort()
        self.cut += len(pending)
        yield from partial
        yield from self.run(untouched, stop_ids)

    def _finished(self, request: RolloutRequest, tokens: Any, logprobs: Any) -> FinishedRequest:
        """Raises FloatingPointError where a log-prob is not finite."""
        ids = [int(token) for token in tokens]
        values = [float(place[token].logprob) for token, place in zip(ids, logprobs, strict=True)]
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"vLLM returned log-probs that are not finite for prompt row {request.prompt}: "
                "its weights or activations are broken; try engine.settings.dtype=float32"
            )
        self.tokens += len(ids)
        return FinishedRequest(request, ids, values)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        with preserve_torch_rng():
            yield
        self.seconds += time.monotonic() - started


@contextmanager
def restore_process_state() -> Iterator[None]:
    """Undoes what building a vLLM engine does to the process it is built in.

    It seeds every random generator, its CPU worker puts a function that does nothing in the place
    of `torch.set_num_threads`, and its import touches deprecated names of torch.
    """
    python, array, set_threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    try:
        with preserve_torch_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_threads
        random.setstate(python)
        np.random.set_state(array)


def check_room(requests: Sequence[RolloutRequest], max_length: int) -> None:
    """Raise ValueError for an empty prompt, or one that leaves no room for its completion."""
    for r in requests:
        if not r.prompt_tokens:
            raise ValueError(f"prompt row {r.prompt} is empty: nothing to sample from")
        if len(r.prompt_tokens) + r.max_new_tokens > max_length:
            raise ValueError(
                f"prompt row {r.prompt} has {len(r.prompt_tokens)} tokens, which leaves no room "
                f"for {r.max_new_tokens} more within {max_length}: lower max_new_tokens, leave "
                "long prompts out, or raise engine.settings.max_model_len or, for more room, "
                "kv_cache_memory_bytes"
            )


def to_rollout(finished: FinishedRequest, policy: Policy, version: int) -> Rollout:
    """The rollout of a finished request; it is truncated where no stop token ends it."""
    request, ids = finished.request, finished.tokens
    return Rollout(
        prompt=request.prompt,
        sample=request.sample,
        prompt_tokens=request.prompt_tokens,
        tokens=tuple(ids),
        logprobs=tuple(finished.logprobs),
        temperature=request.temperature,
        truncated=ids[-1] not in policy.stop_ids,
        text=policy.decode(ids),
        policy_version=version,
    )

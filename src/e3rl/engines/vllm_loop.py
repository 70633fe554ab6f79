"""Requests through a vLLM engine step by step, so that each rollout is out when it is finished.

`LLM.generate` returns everything at the end, and an exception within it leaves requests in the
engine that the next call never gets past. Here a deadline is polled between steps, and whatever
ends a call early takes its requests out again.
"""

import random
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

import numpy as np
import torch

from e3rl.engines.base import RolloutRequest
from e3rl.engines.completions import FinishedRequest, StopFinder
from e3rl.engines.randomness import preserve_torch_rng
from e3rl.engines.vllm_sharing import PrefixSharing, leaders_first

# vLLM's sampling parameters of a request, given the tokens that end it.
SamplingOf = Callable[[RolloutRequest, Sequence[int]], Any]


FinderOf = Callable[[RolloutRequest], StopFinder | None]


@dataclass
class _Running:
    """A request in the engine, under its own name there."""

    name: str
    request: RolloutRequest
    finder: StopFinder | None
    seen: int = 0  # tokens that the finder has had
    stopped: bool = False

    def look_at(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string has ended it; `seen` tokens are then the completion."""
        while self.finder is not None and not self.stopped and self.seen < len(tokens):
            self.stopped = self.finder.ends_with(int(tokens[self.seen]))
            self.seen += 1
        return self.stopped


class StepLoop:
    """Runs requests on an in-process vLLM engine; counts tokens and the seconds they took.

    Args:
        engine: vLLM's `LLMEngine`.
        sampling_of: builds vLLM's sampling parameters of a request.
        sharing: has rollouts of one prompt share it, where the engine can.
    """

    def __init__(
        self, engine: Any, sampling_of: SamplingOf, sharing: PrefixSharing | None = None
    ) -> None:
        self._engine = engine
        self._sampling_of = sampling_of
        self._sharing = sharing
        self._added = 0  # requests so far
        self.tokens = 0
        self.seconds = 0.0
        self.cut = 0  # rollouts that a deadline ended
        self.interrupted = Event()  # set by another thread to end a call at its next step

    def run(
        self,
        requests: Sequence[RolloutRequest],
        stop_ids: Sequence[int],
        deadline_s: float | None = None,
        finder_of: FinderOf = lambda request: None,
    ) -> Generator[FinishedRequest, None, None]:
        """Yield every request when it is finished: by one of `stop_ids`, at its length, or where
        what `finder_of` gives for it finds a stop string.

        After `deadline_s` seconds in the engine, what is unfinished is yielded as it stands;
        requests that have no token by then get one. Raises InterruptedError once `interrupted`.
        """
        self.abort()
        pending: dict[str, _Running] = {}
        spent = self.seconds
        first, rest = self._in_order(requests)
        try:
            self._add(first, pending, stop_ids, finder_of)
            while pending:
                if self.interrupted.is_set():
                    raise InterruptedError(f"{len(pending)} rollouts were still being sampled")
                if deadline_s is not None and self.seconds - spent > deadline_s:
                    self._add(rest, pending, stop_ids, finder_of)
                    untouched = yield from self._cut([*pending.values()])
                    yield from self.run(untouched, stop_ids, finder_of=finder_of)
                    return
                with self._timed():
                    outputs = self._engine.step()
                self._add(rest, pending, stop_ids, finder_of)
                rest = []
                for output in outputs:
                    sampled = output.outputs[0]
                    running = pending.pop(output.request_id)
                    yield self._finished(running, sampled.token_ids, sampled.logprobs)
                for stopped in self._stopped(pending):
                    yield self._take_out(pending.pop(stopped))
        finally:
            if pending:
                self._engine.abort_request([each.name for each in pending.values()], internal=True)

    def _in_order(
        self, requests: Sequence[RolloutRequest]
    ) -> tuple[Sequence[RolloutRequest], Sequence[RolloutRequest]]:
        """What to begin with, and what to add after a step."""
        if self._sharing is None:
            return requests, []
        self._sharing.forget()
        return leaders_first(requests, self._sharing.at_once)

    def _add(
        self,
        requests: Sequence[RolloutRequest],
        pending: dict[str, _Running],
        stop_ids: Sequence[int],
        finder_of: FinderOf,
    ) -> None:
        """Hand requests to the engine; their names to the outside are numbers."""
        with self._timed():
            for number, request in enumerate(requests, start=self._added):
                prompt = {"type": "token", "prompt_token_ids": list(request.prompt_tokens)}
                name = self._engine.add_request(
                    str(number), prompt, self._sampling_of(request, stop_ids)
                )
                pending[str(number)] = _Running(name, request, finder_of(request))
        self._added += len(requests)

    def abort(self) -> None:
        """Take out what an earlier call has left behind: its generator may never be resumed."""
        left = list(self._engine.output_processor.request_states)
        if left:
            self._engine.abort_request(left, internal=True)

    def _stopped(self, pending: Mapping[str, _Running]) -> list[str]:
        """The requests that a stop string has ended."""
        states = self._engine.output_processor.request_states
        return [
            number
            for number, running in pending.items()
            if running.finder and running.look_at(_sampled_so_far(states[running.name])[0])
        ]

    def _take_out(self, running: _Running) -> FinishedRequest:
        """What a request has sampled by now, without going on with it."""
        state = self._engine.output_processor.request_states[running.name]
        finished = self._finished(running, *_sampled_so_far(state))
        self._engine.abort_request([running.name], internal=True)
        return finished

    def _cut(
        self, pending: Sequence[_Running]
    ) -> Generator[FinishedRequest, None, list[RolloutRequest]]:
        """What is there of each request; returns those without a token, to be given one."""
        states = self._engine.output_processor.request_states
        sampled = [(running, *_sampled_so_far(states[running.name])) for running in pending]
        partial = [self._finished(*each) for each in sampled if each[1]]
        self.abort()
        self.cut += len(pending)
        yield from partial
        return [replace(each[0].request, max_new_tokens=1) for each in sampled if not each[1]]

    def _finished(self, running: _Running, tokens: Sequence[int], logprobs: Any) -> FinishedRequest:
        """Raises FloatingPointError where a log-prob is not finite."""
        stopped = running.look_at(tokens)
        ids = [int(token) for token in tokens]
        values = [float(place[token].logprob) for token, place in zip(ids, logprobs, strict=True)]
        if not np.isfinite(values).all():
            raise FloatingPointError(
                f"vLLM returned log-probs that are not finite for prompt row "
                f"{running.request.prompt}: its weights or activations are broken; try "
                "engine.settings.dtype=float32"
            )
        end = running.seen if stopped else len(ids)
        self.tokens += end
        return FinishedRequest(running.request, ids[:end], values[:end], stopped)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        started = time.monotonic()
        with preserve_torch_rng():
            yield
        self.seconds += time.monotonic() - started


def _sampled_so_far(state: Any) -> tuple[Sequence[int], Any]:
    """Tokens and log-probs of a request that goes on."""
    return state.detokenizer.output_token_ids, state.logprobs_processor.logprobs


@contextmanager
def restore_process_state() -> Iterator[None]:
    """Undoes what building a vLLM engine does to the process it is built in.

    It seeds every random generator, its CPU worker puts a function that does nothing in the place
    of `torch.set_num_threads`, its GPU worker sets how torch rounds products of float32, and its
    import touches deprecated names of torch.
    """
    python, array, set_threads = random.getstate(), np.random.get_state(), torch.set_num_threads
    rounding = torch.get_float32_matmul_precision()
    try:
        with preserve_torch_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        torch.set_num_threads = set_threads
        torch.set_float32_matmul_precision(rounding)
        random.setstate(python)
        np.random.set_state(array)


def check_coldest(temperatures: Iterable[float], least: float, sampler: str) -> None:
    """Raise ValueError for a temperature above 0 that `sampler` takes for another one."""
    coldest = min((each for each in temperatures if each > 0), default=least)
    if coldest < least:
        raise ValueError(
            f"temperature {coldest:g}: {sampler} samples at another temperature where one lies "
            f"between 0 and {least:g}; use 0 (greedy), or {least:g} and more"
        )


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

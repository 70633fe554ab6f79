"""Rollouts by vLLM inside the training process, on CPU and GPU.

Weights go from the policy to the engine in memory: vLLM starts with dummy weights from the
policy's configuration, and every `sync` reloads all of them, drops the prefix cache and lets a
canary compare the two. Each rollout is a request of its own with its own seed and temperature, on
the prompt ids as given; log-probs are those of the distribution sampled from
(`processed_logprobs`; a greedy choice is scored at temperature 1, and a request with a top-p or
top-k, which validation may ask for, by the truncated distribution).

On CPU in float32 a seed alone decides a rollout's tokens, whatever else is in the call. On a GPU
vLLM's kernels round differently for batches of different sizes, so that near-ties may fall
otherwise (vLLM's VLLM_BATCH_INVARIANT lifts that where the hardware allows it).
"""

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from e3rl.batch import Rollout
from e3rl.engines.base import RolloutRequest
from e3rl.engines.canary import (
    canary_gaps,
    canary_requests,
    check_canary,
    expected_rounding,
    gap_metrics,
)
from e3rl.engines.completions import stop_finder, to_rollout
from e3rl.engines.engine_thread import EngineThread
from e3rl.engines.memory_errors import EngineMemoryError, name_memory_errors
from e3rl.engines.progress import rollout_bar, show_notice
from e3rl.engines.vllm_build import (
    PreemptionCount,
    build_llm,
    check_installed,
    enter_device,
    release_memory,
    sampling_params,
    share_prefixes,
    shut_down,
)
from e3rl.engines.vllm_loop import StepLoop, check_coldest, check_room
from e3rl.engines.vllm_parallel import LOAD_ERRORS, Weights, load_on_all_ranks
from e3rl.engines.vllm_settings import DEFAULTS, VLLMSettings, check_limits
from e3rl.engines.vllm_split import SharedRequests, check_split, is_split
from e3rl.engines.weight_checks import (
    Shapes,
    check_finite,
    check_shapes,
    dtype_name,
    expected_shapes,
    named_weights,
)
from e3rl.engines.weight_folders import WeightFolders
from e3rl.policy.policy import Policy
from e3rl.process.distributed import all_gather

FIRST_TOKENS = "vLLM samples its first tokens ..."
COLDEST = 1e-5  # temperature above 0 that vLLM does not take for greedy
log = logging.getLogger(__name__)


class VLLMEngine:
    """An engine that is built at the first `sync`, after Lightning's process group.

    Args:
        settings: memory, precision and parallelism of vLLM.
        canary: compare a few tokens' log-probs with the policy's after each sync.
        canary_tolerance: nats at temperature 1 that fewer than a quarter of a prompt's tokens may
            be off; None for what the precision allows.
        deadline_s: seconds in the engine after which a call's unfinished rollouts are cut and
            marked as truncated; calls with a request that may not be cut have none.
        progress: show a bar where generation takes more than a few seconds.

    Raises:
        ModuleNotFoundError: where vLLM is not installed, with the command that installs it.
    """

    holds_weights = True

    def __init__(
        self,
        settings: VLLMSettings = DEFAULTS,
        canary: bool = True,
        canary_tolerance: float | None = None,
        deadline_s: float | None = None,
        progress: bool = True,
    ) -> None:
        check_limits(deadline_s, canary_tolerance)
        check_installed()
        self.settings = settings
        self.canary = canary
        self.canary_tolerance = canary_tolerance
        self.deadline_s = deadline_s
        self.progress = progress
        self._thread = EngineThread()
        self._folders = WeightFolders()  # for processes of vLLM's own
        self._llm: Any = None
        self._loop: StepLoop | None = None
        self._shared: SharedRequests | None = None  # where ranks share an engine
        self._shapes: Shapes = {}
        self._longest: int | None = None  # tokens of a rollout, where somebody knows
        self._preemptions: PreemptionCount | None = None
        self._blueprint: tuple[str, str, torch.device, int | None] | None = None
        self._policy: Policy | None = None  # what was synced; None where the next sync must act
        self._version = -1
        self._writes = 0  # to the policy's weights, as torch counts them
        self._asleep = False
        self._metrics: dict[str, float] = {}
        # Tokens, seconds, cuts and pre-emptions at the last sync.
        self._counted: tuple[int, float, int, int] = (0, 0.0, 0, 0)

    def plan_for(self, longest: int) -> None:
        """Have room for rollouts of `longest` tokens from the next `sync` on, which builds vLLM
        anew where it had less; `settings.max_model_len` goes before."""
        self._longest = max(longest, self._longest or 0)

    def sync(self, policy: Policy, version: int, temperature: float = 1.0) -> None:
        """Send the policy's weights, drop the prefix cache and let the canary compare.

        The canary samples at `temperature`, the one that rollouts are going to have.

        Everything is checked before anything is sent. An engine that a failed transfer broke is
        closed and built anew, once; where the new one fails as well, the error is raised and the
        next `sync` starts from nothing.

        Raises:
            FloatingPointError: for weights that are not finite.
            ValueError: for weights that are not those of the policy's configuration, or a
                temperature that vLLM does not sample at.
            EngineMismatchError: where engine and policy disagree afterwards.
        """
        writes = sum(parameter._version for parameter in policy.model.parameters())
        if policy is self._policy and (version, writes) == (self._version, self._writes):
            with name_memory_errors("woke up"):
                self._thread.call(self._wake_up, ["weights", "kv_cache"])
            self._count()
            return
        started = time.monotonic()
        check_coldest([temperature], COLDEST, "vLLM")
        self._check(policy, version)
        if self._llm is None:
            self._start(policy)
            started += self._metrics["engine/start_s"]
        self._policy, self._version, self._writes = None, version, writes
        _wait_for_device(policy)  # the engine reads weights on a stream of its own
        self._transfer(policy)
        _wait_for_device(policy)  # the next update writes them
        self._metrics["engine/sync_s"] = time.monotonic() - started
        if self.canary:
            self._compare(policy, temperature)
        self._policy = policy
        self._count()

    def _check(self, policy: Policy, version: int) -> None:
        """Raise where weights cannot be sent; an engine for another model is closed."""
        model = policy.model
        config, dtype = model.config.to_json_string(), dtype_name(model)
        blueprint = config, dtype, policy.device, self._longest
        if blueprint != self._blueprint:
            self.close()
            self._shapes, self._blueprint = expected_shapes(model), blueprint
        check_shapes(model, self._shapes)
        check_finite(model, version)

    def generate(self, requests: Sequence[RolloutRequest]) -> Iterator[Rollout]:
        """Yield each rollout when it is finished, while vLLM goes on with the others.

        Raises RuntimeError before the first `sync`, ValueError for an empty prompt, one that
        leaves no room for its completion, and a temperature that vLLM does not sample at.
        """
        policy, loop = self._policy, self._loop
        if policy is None or loop is None or self._asleep:
            raise RuntimeError("engine.generate was called before engine.sync")
        every = self._shared.gather(requests) if self._shared else requests
        check_room(every, self._llm.llm_engine.vllm_config.model_config.max_model_len)
        check_coldest((r.temperature for r in every), COLDEST, "vLLM")
        deadline_s = self.deadline_s if all(r.may_be_cut for r in requests) else None
        sampled = loop.run(every, policy.stop_ids, deadline_s, partial(stop_finder, policy))
        with rollout_bar(len(requests), self.progress) as bar, name_memory_errors("sampled"):
            finishing = self._thread.iterate(sampled)
            for finished in self._shared.own(finishing) if self._shared else finishing:
                bar.update()
                yield to_rollout(finished, policy, self._version)

    def rest(self) -> None:
        """Put the engine to sleep at the configured level; the next `sync` wakes it."""
        if self._llm is None or not self.settings.sleep_level or self._asleep:
            return
        self._thread.call(self._llm.sleep, level=self.settings.sleep_level)
        self._asleep = True
        if self.settings.sleep_level == 2:
            self._policy = None  # the weights are gone: the next sync must send them again

    def interrupt(self) -> None:
        """End a `generate` that another thread is in at vLLM's next step."""
        if self._loop is not None:
            self._loop.interrupted.set()

    def metrics(self) -> dict[str, float]:
        """Seconds of the last sync and canary and canary gaps in nats; tokens per second in the
        engine, rollouts cut, and pre-emptions for want of cache, of all calls since."""
        if self._loop is None:
            return dict(self._metrics)
        now = self._counts()
        tokens, seconds, cut, preempted = (a - b for a, b in zip(now, self._counted, strict=True))
        calls = {
            "engine/cut": float(cut),
            "engine/preempted": float(preempted),
            "engine/tokens_per_s": tokens / max(seconds, 1e-9),
        }
        return self._metrics | calls

    def close(self) -> None:
        """End vLLM and release its memory and process groups; safe to call twice."""
        llm, self._llm = self._llm, None
        self._loop = self._policy = None
        self._asleep = False
        if llm is not None:
            self._thread.call(shut_down, llm)
            del llm
            self._thread.call(release_memory)
        self._folders.close()
        self._thread.close()

    def _count(self) -> None:
        self._counted = self._counts()

    def _counts(self) -> tuple[int, float, int, int]:
        loop, preemptions = self._loop, self._preemptions
        assert loop is not None
        assert preemptions is not None
        return loop.tokens, loop.seconds, loop.cut, preemptions.n

    def _transfer(self, policy: Policy) -> None:
        """Send the weights; a vLLM that does not take them is broken for good, so build another,
        which is closed where it does not either.

        Raises EngineMemoryError where memory is short, which another one would not change.
        """
        try:
            self._send(policy)
        except EngineMemoryError:
            self.close()
            raise
        except LOAD_ERRORS as error:
            log.warning("vLLM did not take the weights (%s); it is built anew", error)
            self.close()
            try:
                self._start(policy)
                self._send(policy)
            except (*LOAD_ERRORS, MemoryError):
                self.close()
                raise

    def _send(self, policy: Policy) -> None:
        on_cpu = policy.device.type == "cpu"
        weights: Weights = named_weights(policy.model, tied_head=on_cpu)
        load = self._load
        if self.settings.tensor_parallel_size > 1 and not self._shared:
            load = partial(self._load_by_files, sum(p.numel() for p in policy.model.parameters()))
        self._thread.call(load_on_all_ranks, load, weights)

    def _load_by_files(self, n: int, weights: Weights) -> None:
        """Have vLLM's own processes read n weights: one copy for all, in the machine's memory."""
        precision = self._llm.llm_engine.vllm_config.model_config.dtype
        held = self._folders.hold(precision, weights, n * precision.itemsize)
        try:
            made_up = {"load_config": {"load_format": "safetensors"}}  # until now
            self._llm.collective_rpc("update_config", kwargs={"overrides": made_up})
            self._load(weights_path=str(held.path))
        finally:
            held.discard()

    @torch.no_grad()
    def _load(self, weights: Weights | None = None, weights_path: str | None = None) -> None:
        assert self._loop is not None
        self._loop.abort()
        self._wake_up(["weights"])
        source = {"weights_iterator": weights, "weights_path": weights_path}
        self._llm.collective_rpc("reload_weights", kwargs=source)
        self._wake_up(["kv_cache"])
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM kept its prefix cache over a sync: requests are still running")

    def _wake_up(self, tags: list[str]) -> None:
        if self._asleep:
            for tag in tags:
                self._llm.wake_up(tags=[tag])
            self._asleep = "kv_cache" not in tags

    def _start(self, policy: Policy) -> None:
        """Build vLLM from the policy's configuration, with dummy weights."""
        started, parts = time.monotonic(), self.settings.tensor_parallel_size
        check_split(parts, self.deadline_s)
        self._shared = SharedRequests(parts) if is_split(parts) else None
        self._thread = EngineThread()
        self._thread.call(enter_device, policy.device)
        with name_memory_errors("was being built"):
            self._llm = self._thread.call(
                build_llm, policy, self.settings, self.progress, self._longest
            )
        self._preemptions = PreemptionCount(self._llm)
        sharing = share_prefixes(self._llm) if policy.device.type == "cpu" else None
        self._loop = StepLoop(self._llm.llm_engine, sampling_params, sharing)
        self._metrics["engine/start_s"] = time.monotonic() - started

    def _compare(self, policy: Policy, temperature: float) -> None:
        """Let the canary sing; raises EngineMismatchError where it does not."""
        assert self._loop is not None
        started = time.monotonic()
        own = dtype_name(policy.model)
        names = (own, policy.computed_in or own, self.settings.precision(own))
        rounding = expected_rounding(names, policy.device.type == "cpu")
        vllm_config = self._llm.llm_engine.vllm_config
        requests = canary_requests(
            policy,
            vllm_config.cache_config.block_size,
            vllm_config.model_config.max_model_len,
            temperature,
            rounding.tokens,
        )
        with show_notice(FIRST_TOKENS, self.progress and "engine/canary_s" not in self._metrics):
            sampled = list(self._thread.iterate(self._loop.run(requests, stop_ids=())))
        rollouts = [to_rollout(f, policy, self._version) for f in sampled]
        ranks = all_gather(canary_gaps(policy, rollouts))
        gaps = [each for rank in ranks for each in rank]  # where one engine is wrong, all must stop
        self._metrics |= gap_metrics(gaps)
        self._metrics["engine/canary_s"] = time.monotonic() - started
        check_canary(gaps, self.canary_tolerance or rounding.tolerance, self._version)


def _wait_for_device(policy: Policy) -> None:
    """Let every stream of a GPU come to its end."""
    if policy.device.type == "cuda":
        torch.cuda.synchronize(policy.device)

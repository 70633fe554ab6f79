"""What of vLLM can be set, and the arguments that vLLM gets."""

import os
from dataclasses import dataclass
from typing import Any

CPU_CACHE = 256 * 2**20  # bytes; vLLM itself would take a share of the whole memory
AT_ONCE = {True: 1024, False: 256}  # rollouts decoded together on a CPU, on a GPU
FITTING = -1  # vLLM's word for the longest that the cache has room for
LONGEST_ON_CPU = 2**15  # where no length is known; vLLM's buffers there are for that many tokens
LENGTH_STEP = 256  # planned lengths are multiples: what is compiled for one serves similar data
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class VLLMSettings:
    """Memory, precision and parallelism of a vLLM engine.

    Nothing that changes the distribution (top-p, top-k, penalties) can be set here: the policy
    gradient needs log-probs of the policy's own. An `Evaluation` may have a top-p or top-k.

    Of several processes this is tested on the CPU: an engine per data-parallel rank, with policies
    that FSDP2 shards too; `tensor_parallel_size=2` over two ranks, which share an engine; and in
    one training process, where vLLM's processes read the weights from files in RAM. None of them
    has been tested on several GPUs.
    """

    dtype: str = "auto"  # of weights and activations; auto = the policy's
    kv_cache_memory_bytes: int | None = None  # None: CPU_CACHE, on a GPU gpu_memory_utilization
    gpu_memory_utilization: float = 0.45  # share of the device, weights included
    tensor_parallel_size: int = 1
    max_num_seqs: int | None = None  # rollouts decoded together; None: AT_ONCE
    max_model_len: int | None = None  # prompt + completion; None: what the data needs
    enforce_eager: bool = True  # False compiles the model at the start: half a minute on CPU
    enable_prefix_caching: bool = True
    block_size: int | None = 32  # tokens of a KV block; None: vLLM's own choice
    sleep_level: int = 0  # between rollouts: 1 moves weights to RAM, 2 drops them (GPU only)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"engine.settings.dtype={self.dtype!r}: choose one of {DTYPES}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"engine.settings.gpu_memory_utilization={self.gpu_memory_utilization}: use a "
                "share in (0, 1]"
            )
        if self.sleep_level not in (0, 1, 2):
            raise ValueError(f"engine.settings.sleep_level={self.sleep_level}: use 0, 1 or 2")
        for name in (
            *("kv_cache_memory_bytes", "tensor_parallel_size", "max_num_seqs"),
            *("max_model_len", "block_size"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"engine.settings.{name}={value}: use at least 1")

    def arguments(self, policy_dtype: str, on_cpu: bool) -> dict[str, Any]:
        """Keyword arguments of `vllm.LLM`.

        Raises ValueError for a sleep level on CPU, where vLLM would ignore it.
        """
        if self.sleep_level and on_cpu:
            raise ValueError(
                f"engine.settings.sleep_level={self.sleep_level}: vLLM sleeps on GPUs only; use 0"
            )
        optional = {
            name: getattr(self, name)
            for name in ("kv_cache_memory_bytes", "block_size")
            if getattr(self, name) is not None
        }
        if on_cpu:
            optional.setdefault("kv_cache_memory_bytes", CPU_CACHE)
            # After a part of a prompt vLLM sets a seeded generator back by an offset, which only
            # those of GPUs have. Prompts as a whole take buffers for the longest one.
            optional["enable_chunked_prefill"] = False
        return optional | {
            "dtype": self.precision(policy_dtype),
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "max_model_len": self.max_model_len or FITTING,
            "tensor_parallel_size": self.tensor_parallel_size,
            "max_num_seqs": self.max_num_seqs or AT_ONCE[on_cpu],
            "enforce_eager": self.enforce_eager,
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_sleep_mode": self.sleep_level > 0,
        }

    def limit_length(self, config: Any, on_cpu: bool, longest: int | None = None) -> None:
        """Write into a model's configuration the longest rollout that vLLM is to plan for.

        Args:
            config: of the model, whose own limit stays where it is lower.
            on_cpu: vLLM's buffers are for the longest rollout there.
            longest: tokens of the longest prompt and completion, where that is known.
        """
        limit = LONGEST_ON_CPU if on_cpu else None
        if longest is not None:
            limit = -(-longest // LENGTH_STEP) * LENGTH_STEP
        if limit is not None and self.max_model_len is None:
            text = config.get_text_config()
            text.max_seq_length = min(getattr(text, "max_seq_length", limit), limit)

    def precision(self, policy_dtype: str) -> str:
        """The engine's dtype by name, such as "float32"."""
        return policy_dtype if self.dtype == "auto" else self.dtype


DEFAULTS = VLLMSettings()


def check_limits(deadline_s: float | None, canary_tolerance: float | None) -> None:
    """Raise ValueError for seconds of a call, or nats of a canary, that are not above 0."""
    if deadline_s is not None and deadline_s <= 0:
        raise ValueError(f"engine.deadline_s={deadline_s}: use seconds > 0, or null for none")
    if canary_tolerance is not None and canary_tolerance <= 0:
        raise ValueError(f"engine.canary_tolerance={canary_tolerance}: use nats > 0, or null")


def check_in_process() -> None:
    """Raise RuntimeError where vLLM has been told to run its core in a process of its own."""
    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING") != "0":
        raise RuntimeError(
            "engine=vllm hands weights over within the process: unset "
            "VLLM_ENABLE_V1_MULTIPROCESSING, or set it to 0"
        )

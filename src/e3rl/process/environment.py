"""Process settings that must be in place before torch, tokenizers or a hub client load.

They are defaults: whatever the user has exported wins. Also what the process has used of memory,
and since when it runs.
"""

import os
import resource
import sys
import time
from pathlib import Path

LOADED = time.monotonic()
_claimed = False  # whether a run counts the seconds since the start of the process


def cache_folder() -> Path:
    """Where the machine keeps what runs would make again: E3RL_CACHE, or a folder for caches."""
    if own := os.environ.get("E3RL_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "e3rl"


DEFAULTS = {
    # Two OpenMP teams that spin for work on shared cores slow each other down by 10x and more;
    # a passive team gives its core away while it waits. Read once, when libgomp is loaded.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Forking a process after the tokenizer has started threads would print a warning per worker.
    "TOKENIZERS_PARALLELISM": "false",
    # Experiments are logged to disk; `WANDB_MODE=online` and a login make them live.
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    # cuBLAS needs this for deterministic results on a GPU.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Triton rounds factors of float32 products to 10 bits on NVIDIA GPUs, and torch does not: an
    # engine whose attention is a Triton kernel would sample from another policy than torch trains.
    # Products of float32 alone pay for it; bfloat16 and float16 are as fast as ever.
    "TRITON_F32_DEFAULT": "ieee",
    # oneDNN keeps a compiled kernel for every shape of a batch that it has met, 1,024 by default:
    # with vLLM on a CPU 160 MB more by and by, and no faster.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    # vLLM samples in the training process: weights reach it without a copy to another process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    # C++ warnings of torch, such as the one about memory that vLLM binds to a NUMA node.
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    # What torch compiles, as for `enforce_eager=false`, takes half a minute; the default folder is
    # a temporary one, from which machines forget the result.
    "TORCHINDUCTOR_CACHE_DIR": str(cache_folder() / "inductor"),
    # Headers are compiled in advance by default: seconds, and 150 MB in the temporary folder.
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


def prepare() -> None:
    """Put every default into the environment that the user has not set."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)


def peak_memory_gib() -> float:
    """Largest resident memory that this process has had so far, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 2**30 if sys.platform == "darwin" else 2**20  # bytes there, KiB elsewhere
    return peak / unit


def claim_start() -> float:
    """`time.monotonic()` at which a run that begins now began to take time.

    The first one of a process began with the process.
    """
    global _claimed
    first, _claimed = not _claimed, True
    return process_start() if first else time.monotonic()


def process_start() -> float:
    """`time.monotonic()` at the start of this process; where no one tells it, when this loaded."""
    stat = Path("/proc/self/stat")
    if not stat.is_file():
        return LOADED
    ticks = int(stat.read_text().rpartition(")")[2].split()[19])  # since boot; see proc(5)
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age

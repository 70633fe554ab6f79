"""What an engine says when memory is short, told from what it says of weights that it refuses."""

from collections.abc import Iterator
from contextlib import contextmanager

# Of torch and its libraries, also where an error has come from another process as text.
SHORT = (
    *("out of memory", "not enough memory", "not enough GPU memory", "STATUS_ALLOC_FAILED"),
    "less than desired GPU memory utilization",  # vLLM: others hold what it was to take
)
SHARE_TOO_SMALL = ("No available memory for the cache blocks", "larger than the available KV cache")
DEVICE_FULL = (
    "policy, gradients, optimiser states and engine share the device, and `debug=plan` shows the "
    "part of each: lower engine.settings.gpu_memory_utilization (or kv_cache_memory_bytes), let "
    "the engine sleep during the update (engine.settings.sleep_level=1), share the policy among "
    "devices (trainer=fsdp2) or train adapters (policy/lora=linear)"
)
NO_CACHE = (
    "the engine's share of the device leaves no cache for one of the longest rollouts: raise "
    "engine.settings.gpu_memory_utilization (or kv_cache_memory_bytes), or lower max_new_tokens"
)


class EngineMemoryError(MemoryError):
    """There is not enough memory for an engine, which another one would not have either."""


def memory_remedy(error: BaseException | None) -> str | None:
    """What to do about an error that memory is the cause of; None for all others."""
    while error is not None:
        text = str(error)
        if any(phrase in text for phrase in SHARE_TOO_SMALL):
            return NO_CACHE
        if isinstance(error, MemoryError) or any(phrase in text for phrase in SHORT):
            return DEVICE_FULL
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def name_memory_errors(doing: str) -> Iterator[None]:
    """Raise EngineMemoryError, with a remedy, for errors that memory is the cause of.

    Args:
        doing: what the engine is at, such as "was being built".
    """
    try:
        yield
    except EngineMemoryError:
        raise
    except (RuntimeError, ValueError, MemoryError) as error:
        if (remedy := memory_remedy(error)) is None:
            raise
        said = next(iter(str(error).splitlines()), type(error).__name__)  # Python's own say nothing
        raise EngineMemoryError(f"out of memory while vLLM {doing} ({said}): {remedy}") from error

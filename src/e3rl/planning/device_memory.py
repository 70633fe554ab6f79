"""What of a device's memory a run takes: the update's parts, the engine's, and both at the peak."""

import torch
from omegaconf import DictConfig, OmegaConf

from e3rl.engines.vllm_settings import CPU_CACHE
from e3rl.planning.hours import GPUS
from e3rl.planning.memory import (
    ADAM_MOMENTS,
    GIB,
    EngineMemory,
    Training,
    resident_bytes,
    training_bytes,
    transformers_memory,
    vllm_memory,
)
from e3rl.planning.processes import count_processes, count_shards, has_servers, is_sharded
from e3rl.policy.shape import ModelShape

TOO_MUCH = "does not fit"
NO_ENGINE = EngineMemory(weights=0, cache=0, cache_tokens=0)


def forecast_memory(cfg: DictConfig, shape: ModelShape) -> dict[str, str]:
    """Memory on one device by label, of which the last is the sum at its peak."""
    capacity = find_capacity(cfg)
    training = _training(cfg)
    parts = training_bytes(shape, training)
    elsewhere = has_servers(cfg)
    engine = NO_ENGINE if elsewhere else engine_memory(cfg, shape, capacity)
    shown = {f"memory: {part}": _size(size) for part, size in parts.items() if size}
    rollouts = engine.cache_tokens // _max_sequence_length(cfg)
    shown["memory: engine"] = (
        f"{_size(engine.total)}; its cache holds {engine.cache_tokens} tokens, {rollouts} of the "
        "longest rollouts"
    )
    if elsewhere:
        shown["memory: engine"] = "none: servers have devices of their own"
    update, resident = sum(parts.values()), resident_bytes(shape, training)
    awake = "settings" in cfg.engine and (
        cfg.engine.settings.sleep_level == 0 or cfg.rollout.lookahead > 0
    )
    peak = update + engine.total if awake else max(update, resident + engine.total)
    shown["memory: peak"] = f"{_size(peak)} per device"
    if capacity:
        shown["memory: peak"] += f" of {_size(capacity)}"
        if peak > capacity or not (rollouts or elsewhere):
            shown["memory: peak"] += f": {TOO_MUCH}; {_remedy(cfg, peak > capacity)}"
    return shown


def _remedy(cfg: DictConfig, too_much: bool) -> str:
    if not too_much:
        return "raise engine.settings.gpu_memory_utilization until the cache holds a rollout"
    if count_processes(cfg) > 1 and not is_sharded(cfg):
        return "every device has a whole copy: share it by trainer=fsdp2 or use a smaller policy"
    blocks = "" if cfg.policy.head.mode == "chunked" else "take policy/head=chunked, or "
    return (
        f"{blocks}lower engine.settings.gpu_memory_utilization, "
        "module.settings.tokens_per_microbatch or max_new_tokens, or train adapters "
        "(policy/lora=linear)"
    )


def _training(cfg: DictConfig) -> Training:
    weight_bytes, compute_bytes = element_bytes(cfg)
    ranks, longest = count_processes(cfg), _max_sequence_length(cfg)
    rollouts = -(-cfg.prompts_per_step * cfg.rollouts_per_prompt // ranks)
    bonus = cfg.loss.entropy_coef
    return Training(
        weight_bytes=weight_bytes,
        compute_bytes=compute_bytes,
        shards=count_shards(cfg),
        bucketed=ranks > 1 and not is_sharded(cfg),
        moments=ADAM_MOMENTS if "Adam" in cfg.module.optimizer._target_ else 1,
        fused=cfg.module.optimizer.get("fused") or False,
        offloaded=cfg.module.settings.offload_optimizer,
        tokens=min(max(cfg.module.settings.tokens_per_microbatch, longest), rollouts * longest),
        checkpointing=cfg.policy.get("gradient_checkpointing", False),
        entropy=OmegaConf.is_config(bonus) or bonus > 0,  # adaptive or fixed
        probe=cfg.module.probe.rows > 0,
        block=cfg.policy.head.block if cfg.policy.head.mode == "chunked" else None,
        head_bytes=4 if cfg.policy.head.dtype == "float32" else None,
        reference=cfg.loss.kl_coef > 0,
    )


def engine_memory(cfg: DictConfig, shape: ModelShape, capacity: int | None) -> EngineMemory:
    """Of a training device that samples too, or else of a server's own."""
    weight_bytes, _ = element_bytes(cfg)
    if "settings" not in cfg.engine:
        rollouts = -(-cfg.prompts_per_step * cfg.rollouts_per_prompt // count_processes(cfg))
        rows = min(cfg.engine.rows_per_call, rollouts)
        copied = weight_bytes * is_sharded(cfg)  # samples with a whole copy
        return transformers_memory(shape, weight_bytes, rows * _max_sequence_length(cfg), copied)
    settings = cfg.engine.settings
    share = None
    if capacity and settings.kv_cache_memory_bytes is None:
        share = int(capacity * settings.gpu_memory_utilization)
    return vllm_memory(
        shape,
        engine_bytes(cfg),
        settings.tensor_parallel_size,
        share,
        settings.kv_cache_memory_bytes or CPU_CACHE,
    )


def engine_bytes(cfg: DictConfig) -> int:
    """Bytes of an element of vLLM's weights and cache."""
    sizes = {"auto": element_bytes(cfg)[0], "float32": 4}
    return sizes.get(cfg.engine.settings.dtype, 2)


def element_bytes(cfg: DictConfig) -> tuple[int, int]:
    """Bytes of a weight and of an activation."""
    precision = str(cfg.trainer.precision)
    half = "16" in precision
    if cfg.policy.get("dtype", "float32") != "float32" or (half and "true" in precision):
        return 2, 2
    return 4, 2 if half else 4


def _max_sequence_length(cfg: DictConfig) -> int:
    return int(cfg.data.max_prompt_tokens + cfg.max_new_tokens)


def find_capacity(cfg: DictConfig) -> int | None:
    """Bytes of one GPU: as planned, or as this machine has; None on CPU."""
    if cfg.plan.gpu_gib:
        return int(cfg.plan.gpu_gib * GIB)
    if cfg.plan.gpu in GPUS:
        return GPUS[cfg.plan.gpu].gib * GIB
    if cfg.trainer.accelerator != "cpu" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    return None


def _size(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB / 10 else f"{size / 2**20:.1f} MiB"

"""How many processes a configuration trains with, and what they share."""

from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from e3rl.config.composition import ConfigurationError
from e3rl.policy.sharding import count_shards as divide_ranks


def is_sharded(cfg: DictConfig) -> bool:
    """Whether ranks share the policy among them."""
    strategy = cfg.trainer.get("strategy", "auto")
    name = strategy if isinstance(strategy, str) else strategy._target_
    return any(word in name.lower() for word in ("fsdp", "modelparallel"))


def count_shards(cfg: DictConfig) -> int:
    """Processes that share one copy of the policy.

    Raises ConfigurationError where they do not make equal groups.
    """
    if not is_sharded(cfg):
        return 1
    strategy, machines = cfg.trainer.strategy, int(cfg.trainer.get("num_nodes", 1))
    replicas = strategy.get("replicas", 1) if OmegaConf.is_config(strategy) else 1
    try:
        return divide_ranks(replicas, count_processes(cfg), machines)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def count_processes(cfg: DictConfig) -> int:
    """Processes that train together; `auto` and -1 are the GPUs of this machine, or one.

    Raises ConfigurationError where there would be none.
    """
    machines = int(cfg.trainer.get("num_nodes", 1))
    if machines < 1:
        raise ConfigurationError(f"trainer.num_nodes={machines}: use at least 1 machine")
    return _count_devices(cfg.trainer.devices, cfg.trainer.accelerator) * machines


def _count_devices(devices: Any, accelerator: str) -> int:
    """Devices of a machine, as Lightning reads them: "2" are two, "2," is the one of that index."""
    if devices in ("auto", -1, "-1"):
        return 1 if accelerator == "cpu" else max(1, torch.cuda.device_count())
    try:
        if OmegaConf.is_list(devices):
            count = len(devices)
        elif "," in str(devices):
            count = sum(bool(index.strip()) for index in devices.split(","))
        else:
            count = int(devices)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ConfigurationError(
            f"trainer.devices={devices} names no device: use their number, a list of their indices "
            "as [0,1], or auto"
        )
    return count


def has_servers(cfg: DictConfig) -> bool:
    """Whether rollouts are sampled by servers, which have devices of their own."""
    return "weights" in cfg.engine  # how they get there


def count_servers(cfg: DictConfig) -> int:
    """How many servers sample, 0 where training processes do."""
    if not has_servers(cfg):
        return 0
    return int(cfg.engine.placement.servers) if "placement" in cfg.engine else len(cfg.engine.urls)


def split_over_ranks(cfg: DictConfig) -> int:
    """How many training processes share an engine."""
    if count_processes(cfg) == 1 or has_servers(cfg):
        return 1
    return int(OmegaConf.select(cfg, "engine.settings.tensor_parallel_size") or 1)

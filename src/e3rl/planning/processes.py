"""How many processes a configuration trains with, and what they share."""

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
    """Processes that train together; `auto` and -1 are the GPUs of this machine, or one."""
    devices = cfg.trainer.devices
    if OmegaConf.is_list(devices):
        count = len(devices)
    elif devices in ("auto", -1, "-1"):
        count = 1 if cfg.trainer.accelerator == "cpu" else max(1, torch.cuda.device_count())
    else:
        count = len(devices.split(",")) if "," in str(devices) else int(devices)
    return count * int(cfg.trainer.get("num_nodes", 1))


def has_servers(cfg: DictConfig) -> bool:
    """Whether rollouts are sampled by servers, which have devices of their own."""
    return "weights" in cfg.engine  # how they get there


def split_over_ranks(cfg: DictConfig) -> int:
    """How many training processes share an engine."""
    if count_processes(cfg) == 1 or has_servers(cfg):
        return 1
    return int(OmegaConf.select(cfg, "engine.settings.tensor_parallel_size") or 1)

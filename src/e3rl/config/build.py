"""Objects of a composed configuration, and what libraries say while they are made."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from e3rl.callbacks.slot import Slot, check_stack
from e3rl.config.composition import ConfigurationError
from e3rl.data.bad_rows import BadRowsError
from e3rl.data.datamodule import PromptDataModule
from e3rl.data.problem import Problem
from e3rl.policy.policy import Policy
from e3rl.rewards.pool import RewardPool
from e3rl.rewards.worker import ScorerNotReadyError


def build(cfg: DictConfig, path: str, **given: Any) -> Any:
    """The object of a configuration node.

    Raises ConfigurationError naming the node where its constructor refuses a value or a file, or
    needs a package that is not installed.
    """
    try:
        return instantiate(OmegaConf.select(cfg, path), _convert_="all", **given)
    except InstantiationException as error:
        if isinstance(error.__cause__, ValueError | OSError | ModuleNotFoundError):
            raise ConfigurationError(f"{path}: {error.__cause__}") from error
        raise


def check_devices(cfg: DictConfig) -> None:
    """Raise ConfigurationError where settings for a GPU meet a machine without one."""
    if torch.accelerator.is_available():
        return
    if (accelerator := cfg.trainer.accelerator) in ("gpu", "cuda", "mps"):
        raise ConfigurationError(
            f"trainer.accelerator={accelerator}: torch {torch.__version__} finds no GPU here; use "
            "trainer.accelerator=cpu, or install a build of torch for the GPU"
        )
    inside = cfg.engine["_target_"] == "e3rl.engines.vllm.VLLMEngine"
    if inside and not cfg.engine.settings.enforce_eager:
        raise ConfigurationError(
            "engine.settings.enforce_eager=false: without a GPU vLLM would compile the model with "
            "a C++ compiler for many minutes before the first rollout; use engine=vllm"
        )


def check_optimizer(cfg: DictConfig) -> None:
    """Raise ConfigurationError where the optimiser refuses one of its settings."""
    make = build(cfg, "module.optimizer")
    try:
        make([torch.nn.Parameter(torch.zeros(1))])
    except ValueError as error:
        raise ConfigurationError(f"module.optimizer: {error}") from error


def build_callbacks(cfg: DictConfig) -> list[Any]:
    """The callbacks in their order; who has them closes their engine and reward workers.

    Raises ConfigurationError where one lacks another whose work it needs.
    """
    callbacks = [build(cfg, f"callbacks.{name}") for name, node in cfg.callbacks.items() if node]
    try:
        check_stack([callback for callback in callbacks if isinstance(callback, Slot)])
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return callbacks


def build_data(cfg: DictConfig) -> PromptDataModule:
    """The problems, which the reward can judge; `bind_data` does what needs a tokenizer.

    A model may take minutes to fetch and load, and mistakes in files are told before it is.
    """
    data: PromptDataModule = build(cfg, "data")
    check_rewards(cfg, [*data.train_problems, *data.validation_problems], "data")
    return data


def bind_data(data: PromptDataModule, policy: Policy) -> None:
    """Have the problems rendered and measured by the policy's tokenizer.

    Raises ConfigurationError about prompts that it has no tokens for, or that are too long.
    """
    try:
        data.bind(policy.encode)
    except (BadRowsError, ValueError) as error:
        raise ConfigurationError(f"data: {error}") from error


def check_rewards(cfg: DictConfig, problems: Sequence[Problem], path: str) -> None:
    """Raise ConfigurationError, naming `path`, where the reward cannot judge these problems."""
    pool: RewardPool
    with build(cfg, "reward") as pool:
        try:
            pool.check(problem.question() for problem in problems)
        except (ValueError, ScorerNotReadyError) as error:
            raise ConfigurationError(f"{path}: {error}") from error


def silence_libraries() -> None:
    """Leave out what libraries say about choices that are made on purpose here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    disable_progress_bar()
    for pattern in (
        ".*does not have many workers.*",
        ".*`IterableDataset` has `__len__` defined.*",
        ".*exists and is not empty.*",
        ".*in eval mode at the start of training.*",
        ".*LeafSpec.*is deprecated.*",
    ):
        warnings.filterwarnings("ignore", pattern)

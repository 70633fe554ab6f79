"""Objects of a composed configuration, and what libraries say while they are made."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

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


def build_data(cfg: DictConfig, policy: Policy) -> PromptDataModule:
    """The problems, rendered and measured by the policy's tokenizer; the reward can judge them."""
    data: PromptDataModule = build(cfg, "data")
    try:
        data.bind(policy.encode)
    except BadRowsError as error:
        raise ConfigurationError(f"data: {error}") from error
    check_rewards(cfg, [*data.train_problems, *data.validation_problems], "data")
    return data


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

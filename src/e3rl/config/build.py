"""Objects of a composed configuration, and what libraries say while they are made."""

import logging
import warnings
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from e3rl.config.composition import ConfigurationError
from e3rl.data.bad_rows import BadRowsError
from e3rl.data.datamodule import PromptDataModule
from e3rl.policy.policy import Policy
from e3rl.rewards.golds import UnmatchableGoldsError, check_golds


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
    """The problems, rendered and measured by the policy's tokenizer, their gold answers checked."""
    data: PromptDataModule = build(cfg, "data")
    try:
        data.bind(policy.encode)
        problems = [*data.train_problems, *data.validation_problems]
        check_golds([(p.id, p.answer) for p in problems], cfg.reward.answer_format)
    except (BadRowsError, UnmatchableGoldsError) as error:
        raise ConfigurationError(f"data: {error}") from error
    return data


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

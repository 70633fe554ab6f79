"""Configurations composed as the commands compose theirs."""

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from e3rl.config.composition import conf_dir, register_resolvers


def composed(*overrides: str, root: str = "train") -> DictConfig:
    """The configuration of a command (its file in conf/) with these overrides."""
    register_resolvers()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
        return compose(root, list(overrides))

"""Composed configurations: Hydra takes a third of a second for one, and tests ask for hundreds.

What Hydra composes is its choices of groups; settings are applied to the outcome. So each set of
choices is composed once in a process, from files that are parsed once, and Hydra's own code applies
the settings to a copy.
"""

import copy
from functools import cache
from typing import ClassVar

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

from e3rl.config.composition import conf_dir, register_resolvers


def composed(*overrides: str, root: str = "train") -> DictConfig:
    """The configuration of a command with these overrides; the caller may change it."""
    return _with_settings(root, overrides, hydra=False)


def composed_with_hydra(*overrides: str) -> DictConfig:
    """The same for `train` with Hydra's own node, whose list of overrides is of choices alone."""
    return _with_settings("train", overrides, hydra=True)


def _with_settings(root: str, overrides: tuple[str, ...], hydra: bool) -> DictConfig:
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices = tuple(str(override.input_line) for override in parsed if is_choice(override))
    cfg = copy.deepcopy(_composed(root, choices, hydra))
    settings = [override for override in parsed if not is_choice(override)]
    ConfigLoaderImpl._apply_overrides_to_config(settings, cfg)
    return cfg


def is_choice(override: Override) -> bool:
    """Whether it names a group, of this project or of Hydra itself, and not a setting."""
    group = override.key_or_group
    return override.package is not None or "/" in group or (conf_dir() / group).is_dir()


class ParsedOnce(CachingConfigRepository):
    """Hydra's files, kept from one composition to the next; each composition changes copies."""

    parsed: ClassVar[dict[str, ConfigResult | None]] = {}

    def load_config(self, config_path: str) -> ConfigResult | None:
        if config_path not in self.parsed:
            self.parsed[config_path] = self.delegate.load_config(config_path)
        if config_path not in self.cache:
            self.cache[config_path] = copy.deepcopy(self.parsed[config_path])
        return self.cache[config_path]


@cache
def _composed(root: str, choices: tuple[str, ...], hydra: bool) -> DictConfig:
    register_resolvers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config_loader_impl, "CachingConfigRepository", ParsedOnce)
        with initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            return compose(root, list(choices), return_hydra_config=hydra)

"""Configurations of run folders that were written before classes moved."""

import importlib
from pathlib import Path

import pytest

from e3rl.config.composition import ConfigurationError
from e3rl.config.saved import MOVED, is_run_configuration, read_saved_configuration


@pytest.mark.parametrize("moved", sorted(set(MOVED.values())))
def test_what_moved_is_where_the_table_says(moved: str) -> None:
    module, _, name = moved.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_targets_have_the_names_of_now_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "name: e3rl.policy.Policy\n"
        "policy:\n"
        "  _target_: e3rl.policy.Policy\n"
        "budget:\n"
        "  _target_: e3rl.budgets.uniform.Uniform\n"
    )
    assert read_saved_configuration(path) == {
        "name": "e3rl.policy.Policy",
        "policy": {"_target_": "e3rl.policy.policy.Policy"},
        "budget": {"_target_": "e3rl.budgets.uniform.Uniform"},
    }


def test_what_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("name: [torn")
    with pytest.raises(ValueError, match=r"config\.yaml cannot be read as YAML: while parsing"):
        read_saved_configuration(path)


@pytest.mark.parametrize("text", ["", "[1]\n", "word\n"])
def test_what_is_no_mapping_is_no_configuration(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="is damaged: it holds no settings"):
        read_saved_configuration(tmp_path / "config.yaml")
    assert not is_run_configuration(tmp_path / "config.yaml")

"""The settings that are checked by type are those that conf/ has."""

from dataclasses import fields
from typing import Any

import pytest
import yaml

from e3rl.config.check import SECTIONS
from e3rl.config.composition import conf_dir
from e3rl.evaluation.settings import OwnSettings
from e3rl.readiness.preflight import PreflightSettings
from e3rl.serve import Serving


def section(file: str, name: str) -> dict[str, Any]:
    found = yaml.safe_load((conf_dir() / f"{file}.yaml").read_text(encoding="utf-8"))
    assert isinstance(found[name], dict)
    return found[name]


def names(settings: type) -> set[str]:
    return {field.name for field in fields(settings)}


def test_of_a_preflight() -> None:
    assert names(PreflightSettings) == section("preflight", "preflight").keys()


def test_of_a_server() -> None:
    assert names(Serving) == section("serve", "serve").keys()


@pytest.mark.parametrize(
    ("name", "file"), [("sweep", "sweep/none"), ("rollout", "train"), ("plan", "train")]
)
def test_of_a_run(name: str, file: str) -> None:
    assert names(SECTIONS[name]) == section(file, name).keys()


def test_of_an_evaluation() -> None:
    found = yaml.safe_load((conf_dir() / "evaluate.yaml").read_text(encoding="utf-8"))
    assert names(OwnSettings) <= found.keys()

"""A run folder has one writer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e3rl.config.composition import ConfigurationError
from e3rl.runs.run import claim_folder


def ranked(zero: bool) -> Any:
    return SimpleNamespace(is_global_zero=zero)


def test_a_second_run_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claim_folder(folder, ranked(True)):
        with (
            pytest.raises(ConfigurationError, match=r"another process is writing a run into .*run"),
            claim_folder(folder, ranked(True)),
        ):
            raise AssertionError("two at once")
        with claim_folder(folder, ranked(False)):  # other ranks of the first one
            pass
    with claim_folder(folder, ranked(True)):
        assert list(folder.iterdir()) == []  # nothing is left of a claim

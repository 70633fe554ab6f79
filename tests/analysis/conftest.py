"""Recorded runs for the tests of the analysis."""

from pathlib import Path

import pytest
from recorded_runs import write_run, write_study

from e3rl.analysis.sources.runs import Run, group_by_arm, load_run, load_runs


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One E3 run; read only."""
    return write_run(tmp_path_factory.mktemp("run"), "e3", seed=1)


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms with two seeds each; read only."""
    return write_study(tmp_path_factory.mktemp("study"), ["grpo", "ts_an", "e3"])


@pytest.fixture(scope="session")
def run(run_folder: Path) -> Run:
    return load_run(run_folder)


@pytest.fixture(scope="session")
def arms(study_folder: Path) -> dict[str, list[Run]]:
    return group_by_arm(load_runs(study_folder))

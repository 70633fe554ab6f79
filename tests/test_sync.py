"""`python -m e3rl.sync`: finds offline runs, leaves the rest to `wandb sync`."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from e3rl.sync import main, offline_folders


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two runs of a sweep, one of them resumed, and one that was logged online."""
    for run, folder in [
        ("grpo/1", "offline-run-20250102_030405-aaa"),
        ("e3/1", "offline-run-20250102_030504-bbb"),
        ("e3/1", "offline-run-20250101_000000-bbb"),
        ("ts/1", "run-20250101_000000-ccc"),
    ]:
        path = tmp_path / run / "wandb" / folder
        path.mkdir(parents=True)
        (path / f"run-{folder[-3:]}.wandb").write_bytes(b"")
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that would have been run; they all end with 7."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=7)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_every_offline_run_below_the_folders_is_handed_on_once_oldest_first(
    sweep: Path, asked: list[list[str]]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(sweep), str(sweep / "e3"), "--entity", "me", "--include-synced"])
    assert stop.value.code == 7
    (command,) = asked
    assert command[:4] == [sys.executable, "-m", "wandb", "sync"]
    assert command[4:7] == ["--entity", "me", "--include-synced"]
    names = [Path(folder).name for folder in command[7:]]
    assert [name[-3:] for name in names] == ["bbb", "aaa", "bbb"]
    assert names == sorted(names)


def test_nothing_to_upload_is_said(
    tmp_path: Path, asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path)])
    assert stop.value.code == 2
    assert f"error: no offline W&B run below {tmp_path}" in capsys.readouterr().err
    assert asked == []


def test_wandb_takes_the_folders_that_are_found(sweep: Path) -> None:
    """The real command, without an upload."""
    done = subprocess.run(
        [sys.executable, "-m", "e3rl.sync", str(sweep), "--dry-run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Would sync 3 run(s)" in done.stdout + done.stderr


def test_folders_are_oldest_first_whatever_run_they_belong_to(sweep: Path) -> None:
    times = [folder.name.split("-")[2] for folder in offline_folders([sweep])]
    assert times == ["20250101_000000", "20250102_030405", "20250102_030504"]

"""A run whose machine fails it: a folder that takes nothing any more, a clock that jumps."""

import errno
import itertools
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import (
    E3,
    STEPS,
    TINY,
    Finished,
    assert_same,
    check_goes_on,
    final_state,
    ledger_rows,
    only_train,
    run,
    sound,
    whole_run,
)

from e3rl.engines.transformers import TransformersEngine
from e3rl.ledger.ledger import read_rows

SETTINGS = (*E3, "checkpoint_every=2")


@pytest.fixture(autouse=True)
def _only_train(monkeypatch: pytest.MonkeyPatch) -> None:
    only_train(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """What a run on a machine without faults samples, writes and ends with."""
    return whole_run(tmp_path_factory.mktemp("whole") / "run", *SETTINGS)


def last_saved(folder: Path) -> int:
    return int(sound(folder)[-1].stem.split("-")[1])


@pytest.mark.parametrize("number", [errno.EROFS, errno.EDQUOT, errno.ENOSPC])
def test_a_folder_that_takes_nothing_any_more_ends_the_run_and_loses_nothing_before(
    number: int, tmp_path: Path, whole: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    write, path_open = os.write, Path.open

    def is_shut() -> bool:
        ledger = folder / "prompts.jsonl"
        return ledger.is_file() and len(read_rows(ledger)) > 3

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    def written(descriptor: int, data: bytes) -> int:
        return refuse() if data.startswith(b"{") and is_shut() else write(descriptor, data)

    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if "r" not in mode and path.is_relative_to(folder) and is_shut():
            refuse()
        return path_open(path, mode, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", written)
        patch.setattr(Path, "open", opened)
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            run(folder, *SETTINGS)
    assert caught.value.errno == number
    assert str(folder) in str(caught.value.filename)
    assert last_saved(folder) == 2
    check_goes_on(folder, SETTINGS, whole, 2)


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 1 MiB, as under a quota; ledgers stay below."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_files")
def test_a_quota_that_a_checkpoint_does_not_fit_into_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OSError, match="File too large"):
        run(folder, *SETTINGS)
    assert list((folder / "checkpoints").iterdir()) == []
    assert len(read_rows(folder / "prompts.jsonl")) == 2


def test_an_engine_that_raises_ends_the_run_with_its_own_error(
    tmp_path: Path, whole: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    generate = TransformersEngine.generate

    def broken(engine: TransformersEngine, *args: Any, **kwargs: Any) -> Any:
        ledger = folder / "prompts.jsonl"
        if ledger.is_file() and len(read_rows(ledger)) > 3:
            raise RuntimeError("the device is gone")
        return generate(engine, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TransformersEngine, "generate", broken)
        with pytest.raises(RuntimeError, match="the device is gone"):
            run(folder, *SETTINGS)
    assert last_saved(folder) == 4
    check_goes_on(folder, SETTINGS, whole, 4)


def test_a_clock_that_jumps_changes_neither_the_run_nor_its_seconds(
    tmp_path: Path, whole: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, now, jumps = time.monotonic(), time.time, itertools.cycle([-86_400, 3_600, 0])
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: now() + next(jumps))
        digests = run(tmp_path / "run", *SETTINGS)
    elapsed = time.monotonic() - began
    assert digests == whole[0]
    assert ledger_rows(tmp_path / "run") == whole[1]
    steps = [row for row in read_rows(tmp_path / "run" / "metrics.jsonl") if row["kind"] == "train"]
    seconds = [row[name] for row in steps for name in row if name.startswith(("time/", "phase/"))]
    assert len(seconds) > STEPS
    assert all(0 <= spent < elapsed for spent in seconds if spent is not None)
    assert 0 < steps[-1]["cost/seconds"] < elapsed


SMALL_DISK = """
set -eu
mount -t tmpfs -o size=$SIZE none "$DISK"
code=0
"$@" hydra.run.dir="$DISK/run" || code=$?
echo "ended with $code"
mount -o remount,size=1g "$DISK"
"$@" hydra.run.dir="$DISK/run" ckpt_path="$DISK/run"
cp -r "$DISK/run" "$KEPT"
"""


def may_mount(place: Path) -> bool:
    """Whether this user may have a file system of their own."""
    command = ("unshare", "-rm", "mount", "-t", "tmpfs", "none", str(place))
    return (
        bool(shutil.which("unshare"))
        and not subprocess.run(command, capture_output=True).returncode
    )


@pytest.mark.slow
def test_a_disk_that_is_full_ends_the_run_which_goes_on_once_there_is_room(tmp_path: Path) -> None:
    disk, kept, whole = tmp_path / "disk", tmp_path / "kept", tmp_path / "whole"
    disk.mkdir()
    if not may_mount(disk):
        pytest.skip("file systems cannot be made here")
    command = (sys.executable, "-m", "e3rl", "train", *TINY, *E3, "checkpoint_every=2")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([*command, f"hydra.run.dir={whole}"], check=True, env=environment)
    saved = sound(whole)[0].stat().st_size
    shown = subprocess.run(
        ["unshare", "-rm", "bash", "-c", SMALL_DISK, "bash", *command],
        env=environment | {"DISK": str(disk), "KEPT": str(kept), "SIZE": str(int(1.8 * saved))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert shown.returncode == 0, shown.stdout
    before, _, _ = shown.stdout.partition("ended with 1\n")
    assert "No space left on device" in before
    assert str(disk / "run") in before
    assert ledger_rows(kept) == ledger_rows(whole)
    assert_same(final_state(kept), final_state(whole))

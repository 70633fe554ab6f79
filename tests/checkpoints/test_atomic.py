"""Checkpoints are written whole or not at all, and loading one runs no code."""

import errno
import itertools
import os
import pickle
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import DamagedCheckpointError, checksum_file, find_damage

OLD = {"state_dict": {"w": torch.arange(4.0)}, "step": 1}
NEW = {"state_dict": {"w": torch.arange(4.0) + 10}, "step": 2}


@pytest.fixture(autouse=True)
def _do_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "step-000001.ckpt"
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded_and_lies_beside_its_checksum(saved: Path) -> None:
    loaded = AtomicCheckpointIO().load_checkpoint(saved)
    assert torch.equal(loaded["state_dict"]["w"], OLD["state_dict"]["w"])
    assert loaded["step"] == 1
    assert names(saved.parent) == ["step-000001.ckpt", "step-000001.ckpt.sha256"]
    assert checksum_file(saved).read_text().endswith("  step-000001.ckpt\n")  # for `sha256sum -c`


@pytest.mark.parametrize("failing", ["save", "checksum", "first rename"])
def test_a_failed_save_leaves_the_old_checkpoint_and_no_litter(
    failing: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_saved(checkpoint: Any, file: Any) -> None:
        file.write(b"PK\x03\x04 half a checkpoint")
        raise OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = saved.read_bytes()
    with monkeypatch.context() as patch:
        if failing == "save":
            patch.setattr(torch, "save", half_saved)
        elif failing == "checksum":
            patch.setattr("e3rl.checkpoints.atomic.sha256", fail)
        else:
            patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            AtomicCheckpointIO().save_checkpoint(NEW, saved)
    assert saved.read_bytes() == before
    assert names(saved.parent) == ["step-000001.ckpt", "step-000001.ckpt.sha256"]
    assert AtomicCheckpointIO().load_checkpoint(saved)["step"] == 1


def test_ctrl_c_within_a_save_ends_it_as_ctrl_c_and_leaves_the_old_checkpoint(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, written = torch.save, []

    def struck(*given: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        save(*given)
        written.append("whole")  # torch reports an interrupted write as a broken file

    monkeypatch.setattr(torch, "save", struck)
    outside = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    try:
        with pytest.raises(KeyboardInterrupt):
            AtomicCheckpointIO().save_checkpoint(NEW, saved)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, outside)
    assert written == ["whole"]
    assert AtomicCheckpointIO().load_checkpoint(saved)["step"] == 1
    assert names(saved.parent) == [saved.name, f"{saved.name}.sha256"]


def test_a_full_disk_in_the_first_save_leaves_an_empty_folder_and_saving_works_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-000001.ckpt"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            AtomicCheckpointIO().save_checkpoint(OLD, path)
    assert names(tmp_path) == []
    AtomicCheckpointIO().save_checkpoint(OLD, path)
    assert find_damage(path) == ""


def test_a_disk_that_fills_up_within_a_save_is_an_error_of_the_disk(saved: Path) -> None:
    before = names(saved.parent)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):  # and not torch's of a file's position
            AtomicCheckpointIO().save_checkpoint({"w": torch.ones(10_000)}, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(saved.parent) == before
    assert AtomicCheckpointIO().load_checkpoint(saved)["step"] == 1


class Killed(BaseException):
    pass


def killed_after(renames: int) -> Callable[[Path, Path], None]:
    """os.replace that ends the process after some renames."""
    done = itertools.count(1)

    def rename(source: Path, target: Path) -> None:
        os.rename(source, target)
        if next(done) == renames:
            raise Killed

    return rename


def test_a_kill_between_the_renames_of_a_first_save_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-000001.ckpt"
    monkeypatch.setattr(os, "replace", killed_after(1))
    with pytest.raises(Killed):
        AtomicCheckpointIO().save_checkpoint(NEW, path)
    assert path.is_file()
    assert "step-000001.ckpt.sha256 is not beside it" in find_damage(path)


@pytest.mark.parametrize(("renames", "step"), [(1, 1), (2, 2), (3, 2)])
def test_a_kill_while_a_checkpoint_is_replaced_leaves_the_old_or_the_new_one(
    saved: Path, monkeypatch: pytest.MonkeyPatch, renames: int, step: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed_after(renames))
        with pytest.raises(Killed):
            AtomicCheckpointIO().save_checkpoint(NEW, saved)
    assert AtomicCheckpointIO().load_checkpoint(saved)["step"] == step
    AtomicCheckpointIO().save_checkpoint(OLD, saved)
    assert len(checksum_file(saved).read_text().splitlines()) == 1


def test_drafts_of_a_killed_process_are_removed_by_the_next_save(saved: Path) -> None:
    (saved.parent / ".step-000007.ckpt.tmp").write_bytes(b"half")
    AtomicCheckpointIO().save_checkpoint(NEW, saved.with_name("step-000002.ckpt"))
    assert not list(saved.parent.glob(".*"))


def test_bytes_reach_the_disk_before_the_names_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    replace = os.replace

    def recorded_fsync(descriptor: int) -> None:
        events.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")

    def recorded_replace(source: Path, target: Path) -> None:
        events.append(f"name {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    AtomicCheckpointIO().save_checkpoint(OLD, tmp_path / "step-000001.ckpt")
    assert events == [
        *("sync .step-000001.ckpt.tmp", "sync .step-000001.ckpt.sha256.tmp"),
        *("name step-000001.ckpt", "name step-000001.ckpt.sha256"),
        f"sync {tmp_path.name}",
    ]


def test_one_flipped_byte_is_an_error_that_names_the_file(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"step-000001\.ckpt.*checksum does not match"):
        AtomicCheckpointIO().load_checkpoint(saved)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("ran-code",))


def test_loading_never_runs_pickled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "step-000001.ckpt"
    AtomicCheckpointIO().save_checkpoint({"x": Evil()}, path)
    with pytest.raises(pickle.UnpicklingError):
        AtomicCheckpointIO().load_checkpoint(path, weights_only=False)
    assert not (tmp_path / "ran-code").exists()


def test_removing_takes_the_checksum_along_and_may_be_repeated(saved: Path) -> None:
    AtomicCheckpointIO().remove_checkpoint(saved)
    AtomicCheckpointIO().remove_checkpoint(saved)
    assert names(saved.parent) == []

"""Checkpoints of several files: whole or not at all, and whoever reads one runs no code of it."""

import io
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from e3rl.callbacks.checkpoint import set_aside
from e3rl.checkpoints import atomic, durable, sharded
from e3rl.checkpoints.atomic import AtomicCheckpointIO
from e3rl.checkpoints.files import (
    MANIFEST,
    DamagedCheckpointError,
    checkpoints,
    find_damage,
    newest_sound,
    remove,
)
from e3rl.checkpoints.sharded import (
    _Index,
    load_shards,
    merge_tensors,
    name_parameters,
    number_parameters,
    read_rest,
    read_tensors,
    save_shards,
    split_tensors,
)

REST = {"finished": 3, "generators": {"python": (3, (1, 2), None)}}


def tensors(factor: float = 1.0) -> dict[str, torch.Tensor]:
    return {
        "state_dict/policy.w": factor * torch.arange(12.0).reshape(3, 4),
        "state_dict/policy.half": factor * torch.ones(2, dtype=torch.bfloat16),
        "optimizer/0/policy.w/step": torch.tensor(7.0 * factor),
    }


@pytest.fixture(autouse=True)
def _do_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints, of steps 2 and 4."""
    for step in (2, 4):
        save_shards(tensors(step), REST | {"finished": step}, tmp_path / f"step-{step:06d}.ckpt")
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_saved_is_loaded_into_the_tensors_that_are_there(folder: Path) -> None:
    found = {name: torch.zeros_like(value) for name, value in tensors().items()}
    places = {name: value.data_ptr() for name, value in found.items()}
    rest = load_shards(found, folder / "step-000004.ckpt")
    assert rest == REST | {"finished": 4}
    for name, value in tensors(4).items():
        assert torch.equal(found[name], value)
        assert found[name].data_ptr() == places[name]


def test_tensors_are_read_by_the_beginning_of_their_names(folder: Path) -> None:
    found = read_tensors(folder / "step-000002.ckpt", "state_dict/")
    assert sorted(found) == ["state_dict/policy.half", "state_dict/policy.w"]
    assert all(torch.equal(found[name], tensors(2)[name]) for name in found)


def test_nothing_but_checkpoints_is_left_and_their_sums_are_what_sha256sum_reads(
    folder: Path,
) -> None:
    assert names(folder) == ["step-000002.ckpt", "step-000004.ckpt"]
    files = names(folder / "step-000004.ckpt")
    assert files == [".metadata", "__0_0.distcp", MANIFEST, "rest.pt"]
    lines = (folder / "step-000004.ckpt" / MANIFEST).read_text().splitlines()
    assert [line[64:] for line in lines] == ["  .metadata", "  __0_0.distcp", "  rest.pt"]


def flip(name: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return harm


def lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def cut_the_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[:80])


def empty_all(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / MANIFEST).touch()


DAMAGES = {
    "the checksum of __0_0.distcp does not match": flip("__0_0.distcp"),
    "the checksum of rest.pt does not match": flip("rest.pt"),
    "__0_0.distcp is missing": lose("__0_0.distcp"),
    f"{MANIFEST} is not in it: its writing was interrupted": lose(MANIFEST),
    f"is not in its {MANIFEST}, which was altered or cut short": cut_the_manifest,
    f"its {MANIFEST} is empty": empty_all,
}


@pytest.mark.parametrize("reason", DAMAGES)
def test_a_damaged_one_is_passed_over_by_name_for_the_one_before(reason: str, folder: Path) -> None:
    newest = folder / "step-000004.ckpt"
    DAMAGES[reason](newest)
    assert reason in find_damage(newest)
    for asked in (folder, newest):
        with pytest.warns(UserWarning, match=r"passing over checkpoint .*step-000004\.ckpt: "):
            assert newest_sound(asked).name == "step-000002.ckpt"
    for load in (lambda: load_shards(tensors(), newest), lambda: read(newest)):
        with pytest.raises(DamagedCheckpointError, match=r"step-000004\.ckpt: ") as error:
            load()
        assert reason in str(error.value)


def read(path: Path) -> dict[str, Any]:
    return AtomicCheckpointIO().load_checkpoint(path)


class Killed(BaseException):
    """What a process does not live to see."""


STAGES = ("the draft", "shards", "rest", "sums", "manifest", "name")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("again", [False, True], ids=["new", "over an old one"])
def test_a_kill_at_any_stage_of_a_save_leaves_the_former_checkpoint_in_use(
    stage: str, again: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    target = folder / ("step-000004.ckpt" if again else "step-000006.ckpt")
    with monkeypatch.context() as patch:
        match stage:
            case "the draft":
                patch.setattr(sharded, "clear_drafts", killed)
            case "shards":
                patch.setattr(sharded, "save", killed)
            case "rest":
                patch.setattr(sharded, "_write_rest", killed)
            case "sums":
                patch.setattr(sharded, "sha256", killed)
            case "manifest":
                patch.setattr(sharded, "manifest", killed)
            case "name":
                patch.setattr(os, "replace", killed)
                patch.setattr(sharded, "swap", killed)
        with pytest.raises(Killed):
            save_shards(tensors(6), REST, target)
    assert newest_sound(folder).name == "step-000004.ckpt"
    save_shards(tensors(8), REST, folder / "step-000008.ckpt")
    assert not [name for name in names(folder) if name.startswith(".")]


def test_a_full_disk_is_an_error_that_leaves_no_litter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    before = names(folder)
    with pytest.raises(OSError, match="No space left on device"):
        save_shards(tensors(6), REST, folder / "step-000006.ckpt")
    assert names(folder) == before


@pytest.mark.parametrize("room", [100, 3000])  # for not even the tensors; for all but the rest
def test_files_that_find_no_room_are_an_error_of_the_disk(room: int, folder: Path) -> None:
    before, rest = names(folder), REST | {"long": list(range(10_000))}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match=r"File too large|could not be written"):
            save_shards(tensors(6), rest, folder / "step-000006.ckpt")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == before


def test_weights_that_only_one_side_has_are_named_with_the_remedy(folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"of another policy: .* is in only one of the two"):
        load_shards({"state_dict/other": torch.ones(1)}, folder / "step-000002.ckpt")
    fewer = dict(list(tensors(2).items())[1:])
    with pytest.raises(RuntimeError, match="of another policy"):
        load_shards(fewer, folder / "step-000002.ckpt")


def test_tensors_that_the_checkpoint_lacks_are_an_error_that_names_them(folder: Path) -> None:
    more = tensors(2) | {"optimizer/0/other/step": torch.ones(1)}
    with pytest.raises(RuntimeError, match=r"could not be read: .*optimizer/0/other"):
        load_shards(more, folder / "step-000002.ckpt")


def test_paths_are_read_as_newer_pythons_name_them() -> None:
    written = pickle.dumps(Path("x"), protocol=2).replace(b"cpathlib\n", b"cpathlib._local\n")
    assert b"pathlib._local" in written
    assert _Index(io.BytesIO(written)).load() == Path("x")


def test_removing_and_setting_aside_are_as_with_single_files(folder: Path) -> None:
    set_aside(folder, 2)
    assert names(folder) == ["step-000002.ckpt", "step-000004.ckpt.superseded"]
    save_shards(tensors(4), REST, folder / "step-000004.ckpt")
    set_aside(folder, 2)  # once more, over the one that is aside already
    assert names(folder) == ["step-000002.ckpt", "step-000004.ckpt.superseded"]
    AtomicCheckpointIO().remove_checkpoint(folder / "step-000002.ckpt")
    remove(folder / "step-000002.ckpt")
    assert checkpoints(folder) == []


def test_files_and_folders_replace_each_other(folder: Path) -> None:
    path = folder / "step-000004.ckpt"
    AtomicCheckpointIO().save_checkpoint({"state_dict": {}}, path)
    assert path.is_file()
    assert find_damage(path) == ""
    save_shards(tensors(), REST, path)
    assert path.is_dir()
    assert find_damage(path) == ""
    assert names(folder) == ["step-000002.ckpt", "step-000004.ckpt"]


def resign(folder: Path) -> None:
    """Give an altered folder the manifest that belongs to it."""
    files = [file for file in folder.iterdir() if file.name != MANIFEST]
    sums = {file.name: sharded.sha256(file) for file in files}
    (folder / MANIFEST).write_text(sharded.manifest(sums))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("ran-code",))


@pytest.mark.parametrize("file", [".metadata", "rest.pt"])
def test_loading_never_runs_pickled_code(
    file: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = folder / "step-000004.ckpt"
    (path / file).write_bytes(pickle.dumps(Evil()))
    if file == "rest.pt":
        torch.save({"x": Evil()}, path / file)
    resign(path)
    with pytest.raises((pickle.UnpicklingError, RuntimeError), match=r"mkdir|Unsupported"):
        load_shards(tensors(), path)
    assert not (tmp_path / "ran-code").exists()


def test_a_run_taken_apart_and_put_together_is_what_one_process_has(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    named = name_parameters(optimizer.state_dict(), ["weight", "bias"])
    assert number_parameters(named)["param_groups"] == optimizer.state_dict()["param_groups"]
    whole = {"state_dict": model.state_dict(), "optimizer_states": [named], "epoch": 4}
    save_shards(*split_tensors(whole), tmp_path / "step-000001.ckpt")
    found = AtomicCheckpointIO().load_checkpoint(tmp_path / "step-000001.ckpt")
    assert found.keys() == {"state_dict", "optimizer_states", "epoch"}
    assert found["epoch"] == 4
    assert torch.equal(found["state_dict"]["weight"], model.weight)
    other = torch.optim.AdamW(torch.nn.Linear(3, 2).parameters())
    other.load_state_dict(found["optimizer_states"][0])
    assert other.param_groups[0]["lr"] == 0.5
    for own, expected in zip(
        other.state_dict()["state"].values(), optimizer.state_dict()["state"].values(), strict=True
    ):
        assert all(torch.equal(own[name], expected[name]) for name in expected)
    assert merge_tensors(*split_tensors(whole))["epoch"] == 4
    assert read_rest(tmp_path / "step-000001.ckpt")["epoch"] == 4


@pytest.mark.parametrize("before", ["a folder", "a file"])
@pytest.mark.parametrize("after", ["a folder", "a file"])
def test_there_is_a_sound_checkpoint_of_a_step_at_every_moment_of_its_replacement(
    before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "step-000004.ckpt"
    write = {
        "a folder": lambda step: save_shards(tensors(step), REST, path),
        "a file": lambda step: AtomicCheckpointIO().save_checkpoint({"step": step}, path),
    }
    write[before](1)
    damages: list[str] = []

    def watched(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            damages.append(find_damage(path))
            return result

        return call

    with monkeypatch.context() as patch:
        for place, name in ((os, "replace"), (os, "unlink"), (shutil, "rmtree")):
            patch.setattr(place, name, watched(getattr(place, name)))
        patch.setattr(sharded, "swap", watched(sharded.swap))
        patch.setattr(atomic, "swap", watched(atomic.swap))
        write[after](2)
    assert damages
    assert not any(damages)
    assert find_damage(path) == ""
    assert path.is_dir() == (after == "a folder")
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_where_names_cannot_change_places_at_once_they_do_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for by_one_call in (True, False):
        one.write_text("1")
        other.mkdir()
        if not by_one_call:
            monkeypatch.setattr(durable.ctypes, "CDLL", lambda _: None)
        durable.swap(one, other)
        assert other.read_text() == "1"
        assert one.is_dir()
        one.rmdir()
        other.unlink()
        assert list(tmp_path.iterdir()) == []

"""Which checkpoint of a folder is taken up: the newest whose bytes are those that were written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from e3rl.checkpoints.files import (
    DamagedCheckpointError,
    checkpoints,
    checksum_file,
    find_damage,
    newest_sound,
    sha256,
    step_of,
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lose_checksum(path: Path) -> None:
    checksum_file(path).unlink()


def empty_checksum(path: Path) -> None:
    checksum_file(path).write_bytes(b"")


def blank_checksum(path: Path) -> None:
    checksum_file(path).write_bytes(b" \n\t\n")


def garble_checksum(path: Path) -> None:
    checksum_file(path).write_bytes(b"\xff\xfe\x00")


DAMAGES: dict[Callable[[Path], None], str] = {
    flip: "checksum does not match",
    truncate: "checksum does not match",
    empty_checksum: "checksum does not match",
    blank_checksum: "checksum does not match",
    garble_checksum: "checksum does not match",
    lose_checksum: "is not beside it",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (2, 16, 128):
        path = tmp_path / f"step-{step:06d}.ckpt"
        path.write_bytes(f"checkpoint {step}".encode())
        checksum_file(path).write_text(f"{sha256(path)}  {path.name}\n")
    (tmp_path / ".step-000256.ckpt.tmp").write_bytes(b"half")
    (tmp_path / "step-000512.ckpt.superseded").write_bytes(b"another course")
    (tmp_path / "mine.ckpt").write_bytes(b"not ours")
    return tmp_path


def test_checkpoints_are_listed_by_step_and_nothing_else_is(folder: Path) -> None:
    (folder / "step-1000000.ckpt").write_bytes(b"seven digits")
    assert [step_of(path) for path in checkpoints(folder)] == [2, 16, 128, 1_000_000]


def test_a_folder_means_its_newest_checkpoint(folder: Path) -> None:
    assert newest_sound(folder).name == "step-000128.ckpt"


def test_a_sound_file_is_taken_though_newer_ones_exist(folder: Path) -> None:
    assert newest_sound(folder / "step-000016.ckpt").name == "step-000016.ckpt"


@pytest.mark.parametrize("harm", DAMAGES, ids=lambda harm: harm.__name__)
def test_a_damaged_checkpoint_is_named_and_passed_over_for_the_one_before(
    harm: Callable[[Path], None], folder: Path
) -> None:
    newest = folder / "step-000128.ckpt"
    harm(newest)
    assert DAMAGES[harm] in find_damage(newest)
    for asked in (folder, newest):
        with pytest.warns(UserWarning, match=rf"step-000128\.ckpt: .*{DAMAGES[harm]}"):
            assert newest_sound(asked).name == "step-000016.ckpt"


def test_where_all_are_damaged_each_is_named_with_its_damage(folder: Path) -> None:
    for path, harm in zip(checkpoints(folder), (lose_checksum, truncate, flip), strict=True):
        harm(path)
    with (
        pytest.warns(UserWarning, match="passing over"),
        pytest.raises(DamagedCheckpointError) as error,
    ):
        newest_sound(folder)
    for step, reason in ((2, "not beside it"), (16, "not match"), (128, "not match")):
        assert any(
            f"step-{step:06d}" in line and reason in line for line in str(error.value).split("\n")
        )


@pytest.mark.parametrize("name", ["step-000064.ckpt", "nowhere"])
def test_no_checkpoint_is_an_error_with_a_remedy(name: str, folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at .*{name}: give a file"):
        newest_sound(folder / name)


def test_an_empty_folder_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint at"):
        newest_sound(tmp_path)


def test_a_missing_file_is_no_sound_checkpoint(tmp_path: Path) -> None:
    assert find_damage(tmp_path / "step-000001.ckpt") == "there is no such file"


def test_another_name_has_no_step() -> None:
    with pytest.raises(ValueError, match=r"mine\.ckpt is not named like step-000064\.ckpt"):
        step_of(Path("mine.ckpt"))


def test_a_checkpoint_cut_at_any_byte_is_passed_over(folder: Path) -> None:
    newest = folder / "step-000128.ckpt"
    sums = checksum_file(newest)
    for path in (newest, sums):
        whole = path.read_bytes()
        # Of a line of sums the name and the end may be missing: the sum alone tells.
        needed = len(whole) if path == newest else 64
        for cut in range(needed):
            path.write_bytes(whole[:cut])
            with pytest.warns(UserWarning, match=r"passing over checkpoint .*step-000128\.ckpt"):
                assert newest_sound(folder).name == "step-000016.ckpt"
        path.write_bytes(whole)
    assert newest_sound(folder) == newest

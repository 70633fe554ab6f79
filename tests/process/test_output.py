"""Places that cannot be written, told by the option that names them."""

import os
from pathlib import Path

import pytest

from e3rl.process.output import check_file, check_folder


def test_files_and_folders_may_be_there_or_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").write_text("")
    for file in ("there", "new", "a/b/new"):
        check_file("--out ", Path(file))
        check_file("--out ", tmp_path / file)
    for folder in (".", "a", "a/b"):
        check_folder("out=", Path(folder))
        check_folder("out=", tmp_path / folder)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for below in ("", "a", "a/b"):
        with pytest.raises(
            ValueError, match=f"^out={file / below}: {file} is a file and no folder"
        ):
            check_folder("out=", file / below)


def test_what_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("")
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != tmp_path)
    with pytest.raises(ValueError, match=f"^--out {tmp_path}/x: {tmp_path} may not be written to"):
        check_file("--out ", tmp_path / "x")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=f"^--out {tmp_path}/mine may not be written to"):
        check_file("--out ", tmp_path / "mine")

"""Folders that are whole or not there, also with several processes and kills."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e3rl.policy.model_cache import ModelFileError, check_room, make_once

MAKER = """
import sys, time
from pathlib import Path
from e3rl.policy.model_cache import make_once

def make(folder):
    (folder / "first").write_text("1")
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    (folder / "second").write_text("2")

make_once(Path(sys.argv[1]), make)
print(sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""


def start_maker(folder: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", MAKER, str(folder), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_of_two_processes_one_makes_it_and_both_find_it_whole(tmp_path: Path) -> None:
    makers = [start_maker(tmp_path / "model", 0.3) for _ in range(2)]
    said = sorted(maker.communicate(timeout=60)[0] for maker in makers)
    assert said == ["['first', 'second']\n", "making\n['first', 'second']\n"]


def test_a_kill_leaves_nothing_that_looks_finished(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    maker = start_maker(folder, 600)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "making\n"
    os.kill(maker.pid, signal.SIGKILL)
    maker.communicate(timeout=60)
    assert not folder.exists()
    assert make_once(folder, lambda draft: (draft / "second").touch()) == folder
    assert [path.name for path in folder.iterdir()] == ["second"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["model"]


def test_what_is_there_is_not_made_again_and_needs_no_right_to_write(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert make_once(folder, lambda draft: pytest.fail("made again")) == folder
    assert list(tmp_path.iterdir()) == [folder]


def test_an_error_while_it_is_made_leaves_no_draft(tmp_path: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "first").touch()
        raise ModelFileError("broken")

    with pytest.raises(ModelFileError, match="broken"):
        make_once(tmp_path / "model", fail)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_named_before_anything_is_written(tmp_path: Path) -> None:
    check_room(tmp_path, 1, "a byte")
    with pytest.raises(ModelFileError, match=r"a galaxy takes 9\.1e\+08 GiB .* E3RL_CACHE"):
        check_room(tmp_path, 978 * 10**15, "a galaxy")

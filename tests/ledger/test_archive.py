"""Recorded runs kept as one archive: unpacked where they are read, packed again when they grow."""

import io
import multiprocessing
import tarfile
from pathlib import Path

import pytest

from e3rl.analysis.sources.runs import load_run
from e3rl.ledger.archive import archive_of, ledger_folders, open_runs, pack_runs
from e3rl.ledger.ledger import pack, read_rows

ROWS = [{"kind": "train", "rollout_step": step, "x": step / 8} for step in range(50)]


def write_runs(folder: Path, names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.yaml").write_text(f"name: {name}\nseed: 1\n")
        pack(folder / name / "metrics.jsonl", ROWS)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("*/*")}


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Where runs a and b would be, which are in the archive alone."""
    write_runs(tmp_path / "there" / "runs", "ab")
    archive = pack_runs(tmp_path / "there" / "runs")
    (tmp_path / "here").mkdir()
    archive.rename(tmp_path / "here" / archive.name)
    return tmp_path / "here" / "runs"


def test_runs_come_back_as_they_were(packed: Path) -> None:
    assert open_runs(packed) == packed
    assert files(packed) == {f"{r}/{f}" for r in "ab" for f in ("config.yaml", "metrics.jsonl")}
    assert (packed / "b" / "config.yaml").read_text() == "name: b\nseed: 1\n"
    assert read_rows(packed / "a" / "metrics.jsonl") == ROWS


def test_one_run_of_an_archive_is_found_by_its_own_folder(packed: Path) -> None:
    assert load_run(packed / "b").name == "b"
    assert ledger_folders(packed / "a", "metrics.jsonl") == [packed / "a"]
    with pytest.raises(FileNotFoundError, match=r"c/config\.yaml is missing"):
        load_run(packed / "c")


def test_equal_runs_give_equal_bytes_whatever_the_clock_or_the_packing(packed: Path) -> None:
    before = archive_of(packed).read_bytes()
    open_runs(packed)
    (packed / "a" / "config.yaml").touch(mode=0o600)
    pack(packed / "a" / "metrics.jsonl", ROWS)
    assert pack_runs(packed).read_bytes() == before


def test_a_folder_without_an_archive_is_itself(tmp_path: Path) -> None:
    write_runs(tmp_path / "runs", "a")
    assert files(open_runs(tmp_path / "runs")) == {"a/config.yaml", "a/metrics.jsonl.xz"}
    assert open_runs(tmp_path / "absent") == tmp_path / "absent"


def test_what_is_unpacked_stays_until_the_archive_is_another(packed: Path, tmp_path: Path) -> None:
    open_runs(packed)
    write_runs(packed, "c")  # recorded since
    (packed / "a" / "config.yaml").write_text("changed")
    open_runs(packed)
    assert (packed / "a" / "config.yaml").read_text() == "changed"
    write_runs(tmp_path / "new" / "runs", "abd")
    pack_runs(tmp_path / "new" / "runs").replace(archive_of(packed))
    open_runs(packed)
    assert (packed / "a" / "config.yaml").read_text() == "name: a\nseed: 1\n"
    assert {path.name for path in packed.iterdir() if path.is_dir()} == set("abcd")


def test_runs_are_found_in_an_archive_from_above_too(packed: Path) -> None:
    found = ledger_folders(packed.parent.parent / "here", "metrics.jsonl")
    assert found == [packed / "a", packed / "b"] == ledger_folders(packed, "metrics.jsonl")


def test_packing_counts_as_unpacked(packed: Path) -> None:
    open_runs(packed)
    write_runs(packed, "c")
    pack_runs(packed)
    (packed / "c" / "config.yaml").write_text("changed")
    open_runs(packed)
    assert (packed / "c" / "config.yaml").read_text() == "changed"


def test_several_processes_may_open_the_same_runs(packed: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.map(open_runs, [packed] * 8)
    assert set(found) == {packed}
    assert len(files(packed)) == 4


def test_a_damaged_archive_is_named(packed: Path) -> None:
    whole = archive_of(packed).read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 1):
        archive_of(packed).write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"runs\.tar\.xz is damaged"):
            open_runs(packed)
        assert files(packed) == set()


def test_an_archive_writes_nowhere_else(packed: Path) -> None:
    with tarfile.open(archive_of(packed), "w:xz") as archive:
        entry = tarfile.TarInfo("../outside.txt")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    with pytest.raises(ValueError, match="outside"):
        open_runs(packed)
    assert not (packed.parent / "outside.txt").exists()

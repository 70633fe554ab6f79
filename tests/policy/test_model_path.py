"""Every way in which `policy.path` may be wrong is named with what to do."""

import shutil
from pathlib import Path

import pytest

from e3rl.policy.model_path import check_model_path
from e3rl.policy.policy import Policy, embedded_folder


@pytest.mark.parametrize("path", ["/nonexistent", "./models/mine", "a b/c", "a/b/c", "~/model", ""])
def test_a_path_that_is_not_there_is_named(path: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        Policy(path)
    assert f"policy.path={path}" in str(caught.value)
    assert "config.json, tokenizer and weights, or a hub name like OWNER/NAME" in str(caught.value)
    assert ("`~` is not expanded" in str(caught.value)) is path.startswith("~")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder of one's own."""
    return Path(shutil.copytree(embedded_folder(), tmp_path / "model"))


@pytest.mark.parametrize(
    ("removed", "missing"),
    [
        ("config.json", "without config.json: give a folder"),
        ("*.safetensors", r"without weights \(\*\.safetensors, \*\.bin\): give"),
        ("tokenizer*", r"without tokenizer \(tokenizer\.json, \.\.\.\): give"),
        ("*", "without config.json and without tokenizer .* and without weights"),
    ],
)
def test_what_a_folder_lacks_is_named(folder: Path, removed: str, missing: str) -> None:
    for file in folder.glob(removed):
        file.unlink()
    with pytest.raises(FileNotFoundError, match=f"policy.path={folder} is a folder {missing}"):
        Policy(str(folder))


def test_fresh_weights_need_none_in_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError):
        Policy(str(folder))
    policy = Policy(str(folder), random_weights=True)
    assert all(bool(p.isfinite().all()) for p in policy.parameters())


def test_a_run_folder_is_to_be_exported_first(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match="by `e3rl export RUN FOLDER`"):
        Policy(str(tmp_path))


def test_a_file_is_no_folder(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is a file: give a folder"):
        Policy(str(folder / "model.safetensors"))


@pytest.mark.parametrize("path", ["Qwen/Qwen2.5-1.5B-Instruct", "gpt2", "a-b/c_d.e"])
def test_names_of_hubs_are_left_to_the_hub(path: str) -> None:
    check_model_path(path, weights=True)


def test_a_hub_that_is_out_of_reach_is_named_with_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out_of_reach(*_: object) -> None:
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr("e3rl.policy.policy.load_tokenizer", out_of_reach)
    with pytest.raises(OSError, match=r"policy\.path=nobody/nothing cannot be .*`hf download nob"):
        Policy("nobody/nothing")


def test_a_chat_without_a_template_names_those_that_bring_one() -> None:
    with pytest.raises(ValueError, match=r"policy\.render=plain, or .* \(qwen_instruct, r1_dist"):
        Policy(render="chat")

"""Models out of GGUF files: the same function, the same tokens, made once."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf_files import TEMPLATE, random_llama, write_gguf
from omegaconf import OmegaConf

from e3rl.config.composition import ConfigurationError
from e3rl.data.problem import Problem
from e3rl.evaluation.policy_check import check_policy
from e3rl.policy import gguf as gguf_models
from e3rl.policy.gguf import convert_once, find_gguf
from e3rl.policy.model_cache import ModelFileError
from e3rl.policy.policy import Policy, resolve_path
from e3rl.policy.shape import ModelShape


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("E3RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def llama() -> Any:
    return random_llama()


@pytest.fixture(scope="module")
def file(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", llama)


def test_the_policy_of_a_file_computes_what_the_file_holds(llama: Any, file: Path) -> None:
    policy = Policy(str(file))
    tokens = torch.arange(40)[None]
    with torch.no_grad():
        logits = policy.model(tokens).logits
        assert torch.allclose(logits, llama(tokens).logits, atol=1e-5)
    assert policy.model.dtype == torch.float32
    assert policy.model.config.tie_word_embeddings
    assert not hasattr(policy.model.config, "quantization_config")
    assert (policy.eos_id, policy.vocabulary_size) == (2, llama.config.vocab_size)
    assert policy.tokenizer.chat_template == TEMPLATE
    text, tokens = policy.encode(Problem("p", "a", "1", "made up"))
    assert text == "<|im_start|>a<|im_end|>"
    assert (tokens[0], tokens[-1]) == (1, 2)


def test_a_digit_is_split_off_before_the_spaces_in_front_of_it(file: Path) -> None:
    """With GPT-2's rule alone the second of two spaces would stay with the digits."""
    tokenize = Policy(str(file)).tokenizer.tokenize
    assert tokenize("7\n\n12") == ["7", "ĊĊ", "1", "2"]
    assert tokenize("7  12 a") == ["7", "ĠĠ", "1", "2", "Ġa"]


def test_the_same_content_is_converted_once_under_any_name(
    file: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = convert_once(file)
    assert folder.parent == cache / "models"
    assert "apache-2.0" in (folder / "README.md").read_text()
    monkeypatch.setattr(gguf_models, "convert", lambda *_: pytest.fail("converted again"))
    other = shutil.copy(file, tmp_path / "other.gguf")
    assert resolve_path(str(other)) == str(folder)


def test_a_file_that_was_replaced_is_another_model(llama: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", llama)
    first = convert_once(path)
    write_gguf(path, random_llama(seed=1))
    assert convert_once(path) != first


def test_a_folder_with_one_file_names_it_and_one_with_a_model_does_not(
    file: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(file, tmp_path / "tiny.gguf"))
    assert find_gguf(str(tmp_path)) == copy
    (tmp_path / "config.json").touch()
    assert find_gguf(str(tmp_path)) is None
    assert find_gguf("owner/name") is None


def test_of_several_files_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelFileError, match=r"several GGUF files \(a\.gguf, b\.gguf\): name one"):
        find_gguf(str(tmp_path))


def test_a_file_that_is_none_or_cut_short_is_named(file: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone\.gguf: there is no such file"):
        resolve_path(str(tmp_path / "gone.gguf"))
    other = tmp_path / "other.gguf"
    other.write_text("no model" * 100)
    with pytest.raises(ModelFileError, match=r"other\.gguf is no whole GGUF file"):
        resolve_path(str(other))
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(ModelFileError, match=r"cut\.gguf is no whole GGUF file"):
        resolve_path(str(cut))


def test_weights_that_are_missing_are_an_error_rather_than_random(
    llama: Any, tmp_path: Path, cache: Path
) -> None:
    part = write_gguf(tmp_path / "part.gguf", llama, without="layers.1.mlp.up_proj")
    with pytest.raises(ModelFileError, match=r"lacks 1 of .* model\.layers\.1\.mlp\.up_proj"):
        resolve_path(str(part))
    assert not any(path.is_dir() for path in (cache / "models").iterdir())


def test_without_the_package_the_command_that_installs_it_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "gguf" else known(name)
    )
    with pytest.raises(ModuleNotFoundError, match=r"needs gguf: pip install 'e3rl\[gguf\]'"):
        resolve_path(str(file))


def test_plans_and_evaluations_read_the_file_too(llama: Any, file: Path, tmp_path: Path) -> None:
    shape = ModelShape.of_path(str(file))
    assert shape.parameters == sum(p.numel() for p in llama.parameters())

    def check(path: Path) -> None:
        policy = {"_target_": "e3rl.policy.policy.Policy", "path": str(path)}
        check_policy(OmegaConf.create({"policy": policy}), "model m", "absent", 127)

    check(file)
    with pytest.raises(ConfigurationError, match=r"gone\.gguf: there is no such file"):
        check(tmp_path / "gone.gguf")

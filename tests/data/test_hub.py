from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

from e3rl.data.hub import local_file
from e3rl.data.problems import load_problems


def test_a_path_is_itself():
    assert local_file("data/a.jsonl") == Path("data/a.jsonl")


def test_an_address_names_repository_revision_and_file(monkeypatch):
    asked = []

    def download(repo, file, **more):
        asked.append((repo, file, more))
        return "cached"

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    assert local_file("hf://datasets/me/set/data/a-00.parquet") == Path("cached")
    local_file("hf://datasets/me/set@v1.0/a.json")
    local_file("hf://datasets/me/set@refs/convert/parquet/main/a.parquet")
    local_file("hf://datasets/me/set@refs%2Fpr%2F3/main/a.parquet")
    assert asked == [
        ("me/set", "data/a-00.parquet", {"repo_type": "dataset", "revision": None}),
        ("me/set", "a.json", {"repo_type": "dataset", "revision": "v1.0"}),
        (
            *("me/set", "main/a.parquet"),
            {"repo_type": "dataset", "revision": "refs/convert/parquet"},
        ),
        ("me/set", "main/a.parquet", {"repo_type": "dataset", "revision": "refs/pr/3"}),
    ]


@pytest.mark.parametrize(
    "failure",
    [LocalEntryNotFoundError("no network\nand more"), OfflineModeIsEnabled("no network")],
)
def test_without_a_network_local_files_are_the_remedy(monkeypatch, failure):
    def download(*_, **__):
        raise failure

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(
        FileNotFoundError, match=r"cannot be fetched.*: no network\). Download"
    ) as error:
        load_problems("hf://datasets/me/set/data/a.json")
    assert "data/a.json of the data set me/set" in str(error.value)
    assert "local file as path=..." in str(error.value)


@pytest.mark.parametrize("address", ["hf://me/set/a.json", "hf://datasets/me/a.json", "hf://"])
def test_what_is_no_address_is_refused_with_the_form(address):
    with pytest.raises(ValueError, match=r"write hf://datasets/OWNER/NAME\[@REVISION\]/FILE"):
        local_file(address)


def test_a_file_from_the_hub_keeps_its_address_as_origin(monkeypatch, tmp_path):
    (tmp_path / "test.jsonl").write_text('{"prompt": "a?", "answer": 1}\n')
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *_, **__: str(tmp_path / "test.jsonl")
    )
    problems = load_problems("hf://datasets/me/set/test.jsonl")
    assert problems.origin == "hf://datasets/me/set/test.jsonl"
    assert problems[0].id == "test:0"

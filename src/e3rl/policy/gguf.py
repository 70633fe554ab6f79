"""Models in one GGUF file, quantised or not, as folders that transformers and vLLM load.

Weights are dequantised to float32 by transformers, which is exact: a quantised weight is a small
integer times a scale. Tokenizer and chat template come from the file too. It takes about a minute
for a model of a hundred million parameters, once a machine: the folder is kept under the digest of
the file's content.
"""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from e3rl.checkpoints.files import sha256
from e3rl.policy.model_cache import ModelFileError, check_room, make_once, models_folder

SUFFIX = ".gguf"
NEEDED = ("gguf", "accelerate")
DIGITS_ALONE = ("smollm",)  # tokenizer.ggml.pre of GPT-2's splits with every digit by itself
CARD = """# {name}

Made by e3rl from `{file}`: the same weights in float32, with its tokenizer and chat template.

- SHA-256 of the file: {digest}
- licence of the model, as the file has it: {licence}
"""


def find_gguf(path: str) -> Path | None:
    """The GGUF file that `policy.path` names: itself, or the only one in a folder without a model.

    Raises ModelFileError for a file that is not there, and for a folder with several.
    """
    place = Path(path)
    if place.suffix == SUFFIX:
        if not place.is_file():
            raise ModelFileError(f"policy.path={path}: there is no such file")
        return place
    if not place.is_dir() or (place / "config.json").is_file():
        return None
    found = sorted(place.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ModelFileError(
            f"policy.path={path} holds several GGUF files ({names}): name one, as "
            f"policy.path={found[0]}; the parts of one model are put together by "
            "`llama-gguf-split --merge`"
        )
    return found[0] if found else None


def convert_once(file: Path) -> Path:
    """Folder of the model in a GGUF file, made where this machine has not got it yet.

    Raises ModelFileError for a file that transformers cannot read or that lacks weights, and where
    the disk is full; ModuleNotFoundError, with the command that installs it, where gguf is missing.
    """
    status = file.stat()
    digest = _digest(file, status.st_size, status.st_mtime_ns)
    return make_once(folder_of(digest), lambda folder: convert(file, digest, folder))


def folder_of(digest: str) -> Path:
    """Where the model of the file with this SHA-256 is kept."""
    return models_folder() / f"gguf-{digest[:16]}"


@lru_cache
def _digest(file: Path, size: int, modified: int) -> str:
    """SHA-256 of a file, taken anew where size or time of change tell that it is another."""
    return sha256(file)


def check_readable() -> None:
    """Raise ModuleNotFoundError where packages are missing that read GGUF files."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"reading GGUF files needs {' and '.join(missing)}: pip install 'e3rl[gguf]'",
            name=missing[0],
        )


def convert(file: Path, digest: str, folder: Path) -> None:
    """Write the model of a GGUF file into a folder: safetensors, tokenizer and a card."""
    check_readable()
    metadata, elements = _read_header(file)
    check_room(folder, 4 * elements, f"{file.name} in float32")
    _load_model(file).save_pretrained(folder)
    _load_tokenizer(file, metadata).save_pretrained(folder)
    card = CARD.format(
        name=metadata.get("general.name", file.stem),
        licence=metadata.get("general.license", "not stated"),
        file=file.name,
        digest=digest,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")


def _read_header(file: Path) -> tuple[dict[str, Any], int]:
    """What a GGUF file says in words, and how many numbers its tensors have."""
    from gguf import GGUFReader, GGUFValueType

    try:
        reader = GGUFReader(file)
    except ValueError as error:  # another format, or a file cut short
        raise ModelFileError(f"{file} is no whole GGUF file: {error}") from error
    texts = {
        name: field.contents()
        for name, field in reader.fields.items()
        if field.types == [GGUFValueType.STRING]
    }
    return texts, sum(int(tensor.n_elements) for tensor in reader.tensors)


def _load_model(file: Path) -> Any:
    from transformers import AutoModelForCausalLM, GgufConfig

    loaded: Any
    try:
        loaded = AutoModelForCausalLM.from_pretrained(
            file.parent,
            gguf_file=file.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            output_loading_info=True,
        )
    except ValueError as error:  # an architecture that transformers does not know from GGUF files
        raise ModelFileError(f"{file}: {error}") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelFileError(
            f"{file} lacks {len(missing)} of the model's weights, such as {missing[0]}: it is a "
            "part of a model, or of an architecture that transformers reads in part"
        )
    return model


def _load_tokenizer(file: Path, metadata: dict[str, Any]) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if metadata.get("tokenizer.ggml.pre") in DIGITS_ALONE:  # else the space before them goes astray
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    return tokenizer

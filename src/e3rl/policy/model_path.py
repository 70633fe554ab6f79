"""What `policy.path` names, looked at before anything is loaded from it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]*[\w-])?")  # OWNER/NAME, or NAME alone
TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")
WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")
REMEDY = "give a folder with config.json, tokenizer and weights, or a hub name like OWNER/NAME"


def check_model_path(path: str, weights: bool) -> None:
    """Raise FileNotFoundError for a path that is neither a model folder nor like a hub's name.

    Files that are a whole model are left to what loads them.

    Args:
        weights: whether the folder must hold weights, and not the configuration alone.
    """
    folder = Path(path)
    if folder.is_dir():
        _check_folder(folder, weights)
    elif folder.is_file() and folder.suffix != ".gguf":
        raise FileNotFoundError(f"policy.path={path} is a file: {REMEDY}")
    elif not folder.exists() and not HUB_NAME.fullmatch(path):
        tilde = "; `~` is not expanded here" if path.startswith("~") else ""
        raise FileNotFoundError(f"policy.path={path}: there is no such folder{tilde}; {REMEDY}")


def _check_folder(folder: Path, weights: bool) -> None:
    def holds(*patterns: str) -> bool:
        return any(next(folder.glob(pattern), None) for pattern in patterns)

    if holds("*.gguf"):
        return
    remedy = REMEDY
    if holds("checkpoints", "step-*.ckpt", ".metadata"):
        remedy = "make a model folder of a run or checkpoint by `e3rl export RUN FOLDER`"
    needed = {"config.json": ("config.json",), "tokenizer (tokenizer.json, ...)": TOKENIZERS}
    if weights:
        needed["weights (*.safetensors, *.bin)"] = WEIGHTS
    missing = [name for name, patterns in needed.items() if not holds(*patterns)]
    if missing:
        raise FileNotFoundError(
            f"policy.path={folder} is a folder without {' and without '.join(missing)}: {remedy}"
        )


@contextmanager
def name_path(path: str) -> Iterator[None]:
    """Say of what a hub does not have, or cannot be asked for, which setting asked and what to do.

    Raises OSError.
    """
    try:
        yield
    except OSError as error:
        raise OSError(
            f"policy.path={path} cannot be loaded. A folder must be there; a hub's name must be "
            "right, open to your login, and in reach or downloaded before (by `hf download "
            f"{path}`, or copy its folder and give that): {error}"
        ) from error

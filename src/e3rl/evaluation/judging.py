"""What decides the verdicts of a reward: its settings, and the code of the user's functions."""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Settings that say how completions are judged, not what is right.
IRRELEVANT = {"workers", "memory_limit_mb"}
HEX = 12  # digits of a digest that are kept


def reward_identity(
    reward: Mapping[str, Any], code: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The settings of a reward that change verdicts, from its configuration.

    `code` holds the digest of every file that functions of the user are taken from, by path: the
    one that is given, as a run recorded it, else that of the files as they are now. It is left out
    where there are none.
    """
    settings = {str(key): value for key, value in reward.items() if key not in IRRELEVANT}
    code = reward_code(reward) if code is None else dict(code)
    return settings | ({"code": code} if code else {})


def reward_code(reward: Mapping[str, Any]) -> dict[str, str]:
    """The digest of every file that functions of the user are taken from, by path."""
    return {path: _digest(file) for path, file in _files_of(reward) if file is not None}


def _files_of(reward: Mapping[str, Any]) -> Iterator[tuple[str, Path | None]]:
    functions = reward.get("functions") or {}
    paths = [reward.get("path"), *(each.get("path") for each in functions.values())]
    for path in paths:
        if isinstance(path, str):
            yield path, _file_of(path)


def _file_of(path: str) -> Path | None:
    """The file of `FILE.py:FUNCTION` or `package.module.FUNCTION`, where there is one."""
    file, separator, _ = path.rpartition(":")
    if separator:
        return Path(file) if Path(file).is_file() else None
    try:
        spec = importlib.util.find_spec(path.rpartition(".")[0])
    except (ImportError, ValueError):  # its absence is told where the function is loaded
        return None
    origin = spec.origin if spec else None
    return Path(origin) if origin and Path(origin).is_file() else None


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:HEX]

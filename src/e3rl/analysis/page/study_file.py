"""What `study.yaml` may say."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from e3rl.config.check import wrong_values


@dataclass(frozen=True)
class StudyFile:
    """The keys of `study.yaml`, of which `runs` alone must be there."""

    runs: str | list[str]
    arms: list[str] | None
    seeds: list[int] | None
    control: str | None
    families: dict[str, Any] | None
    figures: dict[str, Any] | None
    tables: dict[str, Any] | None


def read_study_file(path: Path) -> dict[str, Any]:
    """What `study.yaml` says.

    Raises FileNotFoundError where there is none, ValueError where it is no `StudyFile`.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.parent} has no {path.name}: give the folder of a study, as experiments/NAME"
        )
    try:
        asked = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    keys = [field.name for field in fields(StudyFile)]
    if not isinstance(asked, dict) or "runs" not in asked:
        raise ValueError(f"{path} must have `runs`, and else of {', '.join(keys[1:])}")
    if unknown := [key for key in asked if key not in keys]:
        raise ValueError(f"{path} has no place for {unknown}; there are {', '.join(keys)}")
    if mistakes := list(wrong_values(asked, StudyFile)):
        raise ValueError(f"{path}: {'; '.join(mistakes)}")
    return asked


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Begin what is said of a mistake with what it is a mistake of."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from error

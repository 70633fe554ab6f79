"""Strict loading of state dicts."""

from collections.abc import Iterable, Mapping
from typing import Any


def require_keys(owner: str, state: Mapping[str, Any], expected: Iterable[str]) -> None:
    """Raise ValueError naming the keys of `state` that are unknown to `owner` or missing."""
    unknown = sorted(state.keys() - set(expected))
    missing = sorted(set(expected) - state.keys())
    if unknown or missing:
        raise ValueError(
            f"state of {owner}: unknown keys {unknown}, missing keys {missing}; it was saved by "
            "another rule or version, resume with the configuration that wrote it"
        )

"""What two nested configurations differ in."""

from collections.abc import Iterator, Mapping
from typing import Any

ABSENT = object()  # a setting that is not mentioned


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Every setting in which two nested values differ: its dotted path, and both values.

    A setting that is not mentioned is as good as one that is None. Where `before` lacks one that
    `after` has, `ABSENT` stands for it. Keys come in the order of `before`, then of `after`.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below = f"{path}.{key}" if path else str(key)
            yield from differences(before.get(key, ABSENT), after.get(key), below)
    elif before != after and not (before is ABSENT and after is None):
        yield path, before, after


def flatten(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by dotted key; lists are leaves, and so are empty mappings."""
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            leaves |= flatten(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves

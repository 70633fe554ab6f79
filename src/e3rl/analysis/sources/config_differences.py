"""What the configurations of arms differ in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from e3rl.analysis.sources.runs import Arms
from e3rl.config.differences import flatten

# Where a run lies, how it is called and watched, and the seed, which is no part of an arm.
LEFT_OUT = ("name", "seed", "paths", "logger", "sweep", "ckpt_path", "control", "plan")
ABSENT = "-"


def config_differences(arms: Arms) -> dict[str, dict[str, str]]:
    """Settings that are not the same in all arms: by dotted key, then by arm, as text.

    A setting that is repeated in other groups, by interpolation, is listed once, at its shortest
    key; two of one group that only end alike are two.
    Values that differ between the seeds of an arm are joined by ` | `.
    """
    flat = {arm: [_settings(run.config) for run in runs] for arm, runs in arms.items()}
    keys = {key for configs in flat.values() for config in configs for key in config}
    groups: dict[tuple[str, tuple[str, ...]], str] = {}  # of leaves and their values by arm
    listed: dict[str, tuple[str, ...]] = {}
    for key in sorted(keys, key=lambda key: (key.count("."), key)):
        values = tuple(_join_values(configs, key) for configs in flat.values())
        if len(set(values)) > 1:
            group = key.split(".")[0]
            if groups.setdefault((key.rsplit(".", 1)[-1], values), group) == group:
                listed[key] = values
    return {key: dict(zip(arms, listed[key], strict=True)) for key in sorted(listed)}


def is_of_versions(texts: Iterable[str]) -> bool:
    """Whether a setting only came with a later version: seeds of one arm with it and without it,
    and one value wherever it is."""
    each = [set(text.split(" | ")) for text in texts]
    mixed = any(ABSENT in values and len(values) > 1 for values in each)
    return mixed and len(set().union(*each) - {ABSENT}) == 1


def settings_of_versions(arms: Arms, control: str) -> dict[str, list[str]]:
    """Settings that the control lacks, and two arms or more have at one value, or the other way
    round: by dotted key, those arms. What replaces a node of the control, or is null in it, is no
    such setting."""
    found = config_differences(arms)
    chosen = {key: values for key, values in found.items() if not _is_one_sided(values.values())}
    taken = {*found, *(key.removesuffix("._target_") for key in chosen)}
    kept = {}
    for key, values in found.items():
        lacking = [arm for arm, text in values.items() if text == ABSENT]
        other = [arm for arm in arms if (arm in lacking) != (control in lacking)]
        nested = any(key.startswith(f"{node}.") or node.startswith(f"{key}.") for node in taken)
        if key not in chosen and not nested and len(other) > 1:
            kept[key] = other
    return kept


def _is_one_sided(texts: Iterable[str]) -> bool:
    """Whether some arm has no such setting, and those that have it have one value."""
    texts = set(texts)
    return ABSENT in texts and len({v for text in texts for v in text.split(" | ")}) == 2


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    folder = str(config.get("paths", {}).get("run_dir", ""))
    leaves = flatten({key: value for key, value in config.items() if key not in LEFT_OUT})
    texts = {key: str(value) for key, value in leaves.items()}
    return {key: text for key, text in texts.items() if not folder or folder not in text}


def _join_values(configs: Sequence[Mapping[str, str]], key: str) -> str:
    values = dict.fromkeys(config.get(key, ABSENT) for config in configs)
    return " | ".join(values)

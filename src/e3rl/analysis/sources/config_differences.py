"""What the configurations of arms differ in."""

from collections.abc import Mapping, Sequence
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


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    folder = str(config.get("paths", {}).get("run_dir", ""))
    leaves = flatten({key: value for key, value in config.items() if key not in LEFT_OUT})
    texts = {key: str(value) for key, value in leaves.items()}
    return {key: text for key, text in texts.items() if not folder or folder not in text}


def _join_values(configs: Sequence[Mapping[str, str]], key: str) -> str:
    values = dict.fromkeys(config.get(key, ABSENT) for config in configs)
    return " | ".join(values)

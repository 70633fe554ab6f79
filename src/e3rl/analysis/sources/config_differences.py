"""What the configurations of arms differ in."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from e3rl.analysis.sources.runs import Arms, Run
from e3rl.config.copies import COPIES
from e3rl.config.differences import flatten

# Where a run lies, how it is called and watched, and the seed, which is no part of an arm.
LEFT_OUT = ("name", "seed", "paths", "logger", "sweep", "ckpt_path", "control", "plan")
ABSENT, NULL = "-", "None"
SEED, TARGET = "seed", "_target_"
JOINED = " | "


def config_differences(arms: Arms) -> dict[str, dict[str, str]]:
    """Settings that are not the same in all arms: by dotted key, then by arm, as text.

    One that repeats another by interpolation (`COPIES`) is listed at that one alone, unless its
    values are others. One that is the seed of its run in every run is none.
    Values that differ between the seeds of an arm are joined by ` | `.
    """
    flat = {arm: settings_by_run(runs) for arm, runs in arms.items()}
    every = [config for configs in flat.values() for config in configs]
    seeds = _copies_of_seeds([run for runs in arms.values() for run in runs], every)
    keys = sorted({key for config in every for key in config} - seeds)
    values = {key: tuple(_join_values(configs, key) for configs in flat.values()) for key in keys}
    return {
        key: dict(zip(arms, values[key], strict=True))
        for key in keys
        if len(set(values[key])) > 1 and values.get(_original(key)) != values[key]
    }


def _original(key: str) -> str:
    """The setting that one is filled in from; empty of one that is no copy."""
    node, below = key, ""
    while node not in COPIES:
        if "." not in node:
            return ""
        node, _, leaf = node.rpartition(".")
        below = f".{leaf}{below}"
    return COPIES[node] + below


def is_unsaid(texts: Iterable[str]) -> bool:
    """Whether a setting is not mentioned, or null, in every arm: both mean the same."""
    return {value for text in texts for value in text.split(JOINED)} <= {ABSENT, NULL}


def settings_by_run(runs: Sequence[Run]) -> list[dict[str, str]]:
    """The settings of each run as text, by dotted key."""
    return [_settings(run.config) for run in runs]


def _copies_of_seeds(runs: Sequence[Run], flat: Sequence[Mapping[str, str]]) -> set[str]:
    """Settings that are the seed of their run in every run, by interpolation."""
    pairs = list(zip(runs, flat, strict=True))
    keys = {key for key in (flat[0] if flat else {}) if key.rsplit(".", 1)[-1] == SEED}
    return {key for key in keys if all(found.get(key) == str(run.seed) for run, found in pairs)}


def _settings(config: Mapping[str, Any]) -> dict[str, str]:
    folder = str(config.get("paths", {}).get("run_dir", ""))
    leaves = flatten({key: value for key, value in config.items() if key not in LEFT_OUT})
    texts = {key: str(value) for key, value in leaves.items()}
    return {key: text for key, text in texts.items() if not folder or folder not in text}


def _join_values(configs: Sequence[Mapping[str, str]], key: str) -> str:
    values = dict.fromkeys(config.get(key, ABSENT) for config in configs)
    return JOINED.join(values)

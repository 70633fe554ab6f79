"""Configurations that run folders keep, whenever they were written."""

import re
from pathlib import Path
from typing import Any

import yaml

from e3rl.config.composition import ConfigurationError

# Where the classes of a configuration were before they moved, and are now.
MOVED = {
    "e3rl.adapters.LoRA": "e3rl.policy.adapters.LoRA",
    "e3rl.advantages.pass_at_k.PassAtK": "e3rl.advantages.pass_at_k.PassAtKAdvantage",
    "e3rl.callbacks.validation_plan.Evaluation": "e3rl.callbacks.validation_schedule.Evaluation",
    "e3rl.fsdp2.FSDP2Strategy": "e3rl.training.fsdp2.FSDP2Strategy",
    "e3rl.head_settings.HeadSettings": "e3rl.policy.head.HeadSettings",
    "e3rl.ledger_logger.LedgerLogger": "e3rl.ledger.logger.LedgerLogger",
    "e3rl.module.GRPOModule": "e3rl.training.module.GRPOModule",
    "e3rl.policy.Policy": "e3rl.policy.policy.Policy",
    "e3rl.probe.Probe": "e3rl.training.entropy_meter.EntropyMeter",
    "e3rl.rewards.pool.RewardPool": "e3rl.rewards.maths.build_math_rewards",
    "e3rl.update.UpdateSettings": "e3rl.training.update.UpdateSettings",
    "e3rl.wandb_mirror.WandbMirror": "e3rl.ledger.wandb_mirror.WandbMirror",
}
# The same values as by the one in Python, ten times sooner, where PyYAML has it.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TARGET = re.compile(r"(?<=_target_: )[\w.]+")


class DamagedConfigurationError(ConfigurationError, ValueError):
    """A file of a run folder that holds no configuration."""


def read_saved_configuration(path: Path) -> dict[str, Any]:
    """A saved configuration as plain values, its classes by the names that they have now.

    Raises FileNotFoundError where there is none, DamagedConfigurationError for what is no YAML, and
    for what is no mapping.
    """
    try:
        text = TARGET.sub(lambda m: MOVED.get(m[0], m[0]), path.read_text(encoding="utf-8"))
        found = yaml.load(text, LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise DamagedConfigurationError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(found, dict):
        raise DamagedConfigurationError(
            f"{path} is damaged: it holds no settings; take it from a copy of the run"
        )
    return found


def is_run_configuration(path: Path) -> bool:
    """Whether a file is the configuration of a run, of whichever version."""
    if not path.is_file():
        return False
    try:
        return {"name", "policy"} <= read_saved_configuration(path).keys()
    except DamagedConfigurationError:
        return False

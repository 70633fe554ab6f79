"""Configurations that run folders keep, whenever they were written."""

import re
from pathlib import Path
from typing import Any

import yaml

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


def read_saved_configuration(path: Path) -> Any:
    """A saved configuration as plain values, its classes by the names that they have now.

    Raises FileNotFoundError where there is none, ValueError for what is not YAML.
    """
    text = path.read_text(encoding="utf-8")
    try:
        return yaml.load(TARGET.sub(lambda match: MOVED.get(match[0], match[0]), text), LOADER)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error

"""What a run folder says about how its run was started, and whether it may go on."""

import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from e3rl import __version__
from e3rl.checkpoints.durable import write_atomically
from e3rl.config.composition import ConfigurationError, to_plain_dict
from e3rl.config.differences import ABSENT, differences
from e3rl.config.saved import read_saved_configuration
from e3rl.evaluation.judging import reward_code
from e3rl.ledger.files import CONFIG, ENVIRONMENT, recorded_code

# A resumed run may change these and what is below them: where and how it is observed, and the
# machine it runs on. Everything else decides its numbers.
CHANGEABLE = (
    *("ckpt_path", "control", "paths", "logger", "profiler", "sweep", "plan"),
    *("validate_every", "checkpoint_every", "figures", "stall_s"),
    *("callbacks.checkpoint", "callbacks.metrics", "engine.progress", "reward.workers", "trainer"),
    *("engine.urls", "engine.wait_s", "engine.settings.gpu_memory_utilization"),
    "module.settings.nonfinite_steps",
)
NOT_CHANGEABLE = (
    *("trainer.precision", "trainer.max_epochs"),
    *("trainer.limit_train_batches", "trainer.limit_val_batches"),
)
PACKAGES = ("torch", "lightning", "transformers", "hydra-core", "math-verify", "wandb", "numpy")


ANEW = "repeat those overrides, or start a new run without ckpt_path"


def check_same_run(
    cfg: DictConfig, run_dir: Path, remedy: str = ANEW, finished: bool = False
) -> None:
    """Raise ConfigurationError where a resumed run is not configured as it was started.

    A finished run may have been made before some setting existed: what its configuration does not
    mention is not compared.
    """
    saved = run_dir / CONFIG
    if not saved.is_file():
        raise ConfigurationError(f"{saved} is missing: keep checkpoints in their run folder")
    written = OmegaConf.to_container(cfg, resolve=False)
    found = sorted(
        differences(read_saved_configuration(saved), to_plain_dict(cfg)),
        key=lambda item: item[0],
    )
    sources = [(before, after) for path, before, after in found if not _is_copy(written, path)]
    changed = [
        f"  - {path}: {None if before is ABSENT else before!r} at the start, {after!r} now"
        for path, before, after in found
        if not (finished and before is ABSENT)
        and not (_is_copy(written, path) and (before, after) in sources)
        and (path in NOT_CHANGEABLE or not _is_changeable(path))
    ]
    if changed:
        listed = "\n".join(changed)
        raise ConfigurationError(f"{run_dir} was started with other settings; {remedy}:\n{listed}")


def _is_changeable(path: str) -> bool:
    return f"{path}.".startswith(tuple(f"{prefix}." for prefix in CHANGEABLE))


def _is_copy(written: Any, path: str) -> bool:
    """Whether a setting has its value by an interpolation of itself or of a node above it."""
    for key in path.split("."):
        if isinstance(written, dict):
            written = written.get(key)
    return isinstance(written, str) and "${" in written


def write_provenance(cfg: DictConfig, run_dir: Path, resume: Path | None) -> None:
    """Write the resolved configuration and the environment; a resumed run keeps the first ones, and
    of a run that begins anew in its folder copies stay."""
    run_dir.mkdir(parents=True, exist_ok=True)
    if resume is None or not (run_dir / CONFIG).exists():
        for name in (CONFIG, ENVIRONMENT):
            if (run_dir / name).is_file():  # a copy, so that the folder is a run's at every moment
                shutil.copyfile(run_dir / name, run_dir / f"{name}.superseded")
        write_atomically(run_dir / CONFIG, OmegaConf.to_yaml(OmegaConf.create(to_plain_dict(cfg))))
        facts = json.dumps(describe_environment(cfg), indent=1)
        write_atomically(run_dir / ENVIRONMENT, facts + "\n")


def find_edited_rewards(cfg: DictConfig, run_dir: Path) -> list[str]:
    """A line per file of the user's reward functions that is not what it was when the run began.

    A file may have been mended after it ended the run, so this is told and not refused.
    """
    began = recorded_code(run_dir) or {}
    now = reward_code(to_plain_dict(cfg.reward))
    return [
        f"{file} has been edited since this run began: its steps are judged by two versions, and "
        "only a new run is judged by one"
        for file, digest in began.items()
        if now.get(file, digest) != digest
    ]


def describe_environment(cfg: DictConfig) -> dict[str, Any]:
    """Versions, machine, command, state of the checkout and digests of the user's rewards."""
    overrides = list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []
    return {
        "e3rl": __version__,
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
        "overrides": overrides,
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted": bool(_git("status", "--porcelain")),
        "reward_code": reward_code(to_plain_dict(cfg.reward)),
    }


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # a machine without git
        return ""
    return done.stdout.strip()

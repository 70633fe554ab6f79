"""The recorded control that a run is compared with when it has ended."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from e3rl.config.composition import ConfigurationError, check_given, to_plain_dict
from e3rl.config.saved import read_saved_configuration
from e3rl.evaluation.judging import reward_identity
from e3rl.ledger.archive import archive_of, ledger_folders
from e3rl.ledger.files import CONFIG, METRICS, recorded_code

SHARED = ("max_new_tokens", "policy", "reward")  # settings that a run has as its control
PATIENCE = ("deadline_s", "batch_size")  # of a reward, which the machine asks for


def check_control(cfg: DictConfig) -> None:
    """Raise ConfigurationError where the control's runs, if there are any, are not one arm's, and
    where it is given and empty."""
    check_given("control", cfg.control)
    arms = {str(read_saved_configuration(path / CONFIG)["name"]) for path in control_folders(cfg)}
    if len(arms) > 1:
        raise ConfigurationError(
            f"control={cfg.control} has runs of {', '.join(sorted(arms))}: give the folder of a "
            "run, or of the runs of one arm"
        )


def control_folders(cfg: DictConfig) -> Sequence[Path]:
    """The folders of the control's runs; none where it is not configured or not there."""
    if cfg.control is None:
        return []
    place = Path(cfg.control)
    there = place.is_dir() or archive_of(place).is_file()
    return ledger_folders(place, METRICS) if there else []


def unlike_control(cfg: DictConfig) -> str | None:
    """Why a run and its control are not compared: they start from different policies, or their
    answers are judged, or cut, by different settings, or the control does not record by which;
    None where they are alike."""
    own = _comparable(cfg.policy.path, cfg.max_new_tokens, to_plain_dict(cfg.reward))
    for folder in control_folders(cfg):
        there = read_saved_configuration(folder / CONFIG)
        if absent := [key for key in SHARED if key not in there]:
            return (
                f"not compared with the control in {cfg.control}, which does not record "
                f"{', '.join(absent)}"
            )
        recorded = _comparable(
            *(there["policy"]["path"], there["max_new_tokens"], there["reward"]),
            recorded_code(folder),
        )
        for key in sorted(own.keys() | recorded.keys()):
            if own.get(key) != recorded.get(key):
                return (
                    f"not compared with the control in {cfg.control}, which has "
                    f"{key}={recorded.get(key)} where this run has {own.get(key)}"
                )
    return None


def _comparable(
    path: str,
    max_new_tokens: int,
    judge: Mapping[str, Any],
    code: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The settings that a run shares with a control, by dotted name; null ones are left out.

    `code` is that of the user's reward functions, by default as it is now.
    """
    reward = reward_identity(judge, code).items()
    shared = {
        "policy.path": path,
        "max_new_tokens": max_new_tokens,
        **{f"reward.{key}": value for key, value in reward if key not in PATIENCE},
    }
    return {key: value for key, value in shared.items() if value is not None}

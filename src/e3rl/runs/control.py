"""The recorded control that a run is compared with when it has ended."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from e3rl.config.composition import ConfigurationError
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.archive import archive_of, ledger_folders
from e3rl.ledger.files import CONFIG, METRICS


def check_control(cfg: DictConfig) -> None:
    """Raise ConfigurationError where the control's runs, if there are any, are not one arm's."""
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

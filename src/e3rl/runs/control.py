"""The recorded control that a run is compared with when it has ended."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from e3rl.analysis.measures.evaluations import EvaluationResult
from e3rl.analysis.sources.runs import CONFIG, METRICS, Run, load_runs
from e3rl.analysis.tables.arm_table import arm_evaluations
from e3rl.config.composition import ConfigurationError
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.archive import archive_of, ledger_folders


def check_control(cfg: DictConfig) -> None:
    """Raise ConfigurationError where the control's runs, if there are any, are not one arm's."""
    arms = {str(read_saved_configuration(path / CONFIG)["name"]) for path in control_folders(cfg)}
    if len(arms) > 1:
        raise ConfigurationError(
            f"control={cfg.control} has runs of {', '.join(sorted(arms))}: give the folder of a "
            "run, or of the runs of one arm"
        )


def control_evaluations(cfg: DictConfig, run: Run) -> list[EvaluationResult]:
    """The last validation of the recorded control's runs, at several entropies.

    Empty where no control is configured or there, or where it was validated on other problems.
    """
    folders = control_folders(cfg)
    recorded = load_runs(folders) if folders else []
    problems = set(run.problems["problem_id"])
    if not problems or any(not problems <= set(each.problems["problem_id"]) for each in recorded):
        return []
    return arm_evaluations({f"{each.name} (recorded)": recorded for each in recorded[:1]})


def control_folders(cfg: DictConfig) -> Sequence[Path]:
    """The folders of the control's runs; none where it is not configured or not there."""
    if cfg.control is None:
        return []
    place = Path(cfg.control)
    there = place.is_dir() or archive_of(place).is_file()
    return ledger_folders(place, METRICS) if there else []

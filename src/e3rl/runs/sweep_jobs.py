"""Jobs of a sweep that is started again: finished ones are skipped, broken ones go on.

A job is told by its folder, which lies in that of the sweep, and not by how it was started: all
processes of a run over several devices must come to the same answer.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from e3rl.checkpoints.files import checkpoints, find_damage, newest_sound
from e3rl.config.composition import ConfigurationError, checkpoint_to_resume, run_folder_of
from e3rl.config.saved import read_saved_configuration
from e3rl.ledger.files import CONFIG, read_summary
from e3rl.runs.provenance import check_same_run


def is_job(cfg: DictConfig) -> bool:
    """Whether the run's folder is one of its sweep's."""
    sweep = Path(cfg.paths.sweeps, cfg.sweep.name)
    return Path(cfg.paths.run_dir).resolve().parent == sweep.resolve()


def finished_job(cfg: DictConfig) -> dict[str, Any] | None:
    """Summary of a job that was finished by an earlier start of its sweep, else None.

    Raises ConfigurationError, naming the differences, where the run in the folder is another one,
    and ValueError for a damaged summary.
    """
    run_dir = Path(cfg.paths.run_dir)
    summary = read_summary(run_dir) if is_job(cfg) else None
    if summary is None:
        return None
    if not (run_dir / CONFIG).is_file():
        raise ConfigurationError(f"{run_dir / CONFIG} is missing, so whose run it is is not known")
    asked = cfg.copy()
    # Only a policy knows it, and none is built to find out that there is nothing to do.
    asked.vocabulary_size = read_saved_configuration(run_dir / CONFIG)["vocabulary_size"]
    _check_same_job(asked, run_dir, finished=True)
    return summary


def find_resume_checkpoint(cfg: DictConfig) -> Path | None:
    """The checkpoint that `ckpt_path` means, or the newest sound one of a job of a sweep.

    Raises ConfigurationError where `ckpt_path` leads to none.
    """
    run_dir = Path(cfg.paths.run_dir)
    if cfg.ckpt_path:
        return checkpoint_to_resume(cfg.ckpt_path, run_dir)
    folder = run_dir / "checkpoints"
    if not is_job(cfg) or all(find_damage(path) for path in checkpoints(folder)):
        return None
    return newest_sound(folder)


def check_resumed_settings(cfg: DictConfig, resume: Path | None) -> None:
    """Raise ConfigurationError where the run that is gone on with is configured otherwise.

    A job counts as begun from the moment on that its configuration is written down.
    """
    run_dir = Path(cfg.paths.run_dir)
    if resume and cfg.ckpt_path:
        check_same_run(cfg, run_folder_of(resume))
    elif resume or (is_job(cfg) and (run_dir / CONFIG).is_file()):
        _check_same_job(cfg, run_dir)


def _check_same_job(cfg: DictConfig, run_dir: Path, finished: bool = False) -> None:
    remedy = f"repeat those overrides, or choose another sweep.name than {cfg.sweep.name}"
    check_same_run(cfg, run_dir, remedy, finished)

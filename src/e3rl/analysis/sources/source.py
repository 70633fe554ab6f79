"""Where runs come from: run folders, offline W&B runs, a W&B project."""

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from e3rl.analysis.sources.runs import Run, arm_and_seed, load_runs
from e3rl.analysis.sources.wandb_offline import (
    find_offline_files,
    group_by_id,
    load_offline_run,
    load_offline_runs,
)
from e3rl.analysis.sources.wandb_project import load_project
from e3rl.ledger.archive import ledger_folders
from e3rl.ledger.files import METRICS

PROJECT = "wandb:"


def read_runs(sources: str | Path | Sequence[str | Path]) -> list[Run]:
    """The runs of one or several sources, by arm and seed.

    A source is a run folder or any folder above run folders; a folder with offline W&B runs, each
    read only where it has no ledger, which is the truth that W&B mirrors; or
    `wandb:entity/project`.

    Raises FileNotFoundError for a folder without runs, ValueError for broken ones. Beside ledgers a
    W&B run that cannot be read, as of a process that ended at its start, is passed over with a
    warning.
    """
    every = [sources] if isinstance(sources, str | Path) else list(sources)
    runs = {run.path.resolve(): run for source in every for run in _read(source)}
    return sorted(runs.values(), key=arm_and_seed)


def _read(source: str | Path) -> list[Run]:
    if str(source).startswith(PROJECT):
        return load_project(str(source).removeprefix(PROJECT))
    folder = Path(source)
    folders, mirrors = ledger_folders(folder, METRICS), find_offline_files(folder)
    if mirrors and not folders:
        return load_offline_runs(folder)
    runs = load_runs(folder)
    return [*runs, *_read_mirrors(_without_ledger(mirrors, runs))]


def _without_ledger(mirrors: Iterable[Path], runs: Sequence[Run]) -> list[list[Path]]:
    """Record files, by W&B run, of those that are no mirror of a run with a ledger: they lie in no
    such run's folder, and have the id of none."""
    folders = {run.path.resolve() for run in runs}
    ids = {_wandb_id(run.config) for run in runs}
    return [
        files
        for found, files in group_by_id(mirrors).items()
        if found not in ids and all(folders.isdisjoint(file.resolve().parents) for file in files)
    ]


def _wandb_id(config: Any) -> str | None:
    """The id under which a run logs to W&B; None where its configuration does not tell."""
    for name in ("logger", "wandb", "id"):
        config = config.get(name) if isinstance(config, dict) else None
    return None if config is None else str(config)


def _read_mirrors(found: Iterable[Sequence[Path]]) -> list[Run]:
    runs = []
    for files in found:
        try:
            runs.append(load_offline_run(files))
        except ValueError as error:
            warnings.warn(f"passing over a W&B run without a ledger: {error}", stacklevel=2)
    return runs

"""Where runs come from: run folders, offline W&B runs, a W&B project."""

from collections.abc import Sequence
from pathlib import Path

from e3rl.analysis.sources.runs import Run, arm_and_seed, load_runs
from e3rl.analysis.sources.wandb_offline import find_offline_files, load_offline_runs
from e3rl.analysis.sources.wandb_project import load_project
from e3rl.ledger.archive import ledger_folders
from e3rl.ledger.files import METRICS

PROJECT = "wandb:"


def read_runs(sources: str | Path | Sequence[str | Path]) -> list[Run]:
    """The runs of one or several sources, by arm and seed.

    A source is a run folder or any folder above run folders; a folder with offline W&B runs, read
    only where there is no ledger, which is the truth that W&B mirrors; or `wandb:entity/project`.

    Raises FileNotFoundError for a folder without runs, ValueError for broken ones.
    """
    every = [sources] if isinstance(sources, str | Path) else list(sources)
    runs = {run.path.resolve(): run for source in every for run in _read(source)}
    return sorted(runs.values(), key=arm_and_seed)


def _read(source: str | Path) -> list[Run]:
    if str(source).startswith(PROJECT):
        return load_project(str(source).removeprefix(PROJECT))
    folder = Path(source)
    if not ledger_folders(folder, METRICS) and find_offline_files(folder):
        return load_offline_runs(folder)
    return load_runs(folder)

"""Runs of a W&B project, over its public interface; needs a login and the network."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from e3rl.analysis.sources.runs import Run, arm_and_seed
from e3rl.analysis.sources.wandb_run import TABLES, run_from_wandb, table_path

JOB = "train"


def load_project(
    project: str, filters: Mapping[str, Any] | None = None, api: Any | None = None
) -> list[Run]:
    """Every training run of a W&B project, by arm and seed.

    Args:
        project: `entity/project`, or `project` of the default entity.
        filters: W&B's query, such as `{"group": "entropy_control/e3"}`; None takes all.
        api: a `wandb.Api`; None makes one, which needs `wandb login` or WANDB_API_KEY.

    Raises ValueError where the project has no training run, or W&B knows no user.
    """
    if api is None:
        import wandb
        from wandb.errors import UsageError

        try:
            api = wandb.Api()
        except UsageError as error:
            raise ValueError(f"wandb:{project}: {error} Or set WANDB_API_KEY.") from error
    found = api.runs(project, filters={"jobType": JOB, **(filters or {})})
    runs = [_load(project, run) for run in found]
    if not runs:
        raise ValueError(f"the W&B project {project} has no run with job type {JOB}: {filters=}")
    return sorted(runs, key=arm_and_seed)


def _load(project: str, run: Any) -> Run:
    history = list(run.scan_history())
    tables: dict[str, list[pd.DataFrame]] = {}
    for item in history:
        for name in TABLES:
            path = table_path(item, name)
            if path is not None:
                tables.setdefault(name, []).append(_table(run, path))
    return run_from_wandb(Path(project) / str(run.id), dict(run.config), history, tables)


def _table(run: Any, path: str) -> pd.DataFrame:
    with TemporaryDirectory() as folder, run.file(path).download(root=folder, replace=True) as file:
        return pd.DataFrame(**json.load(file))

"""Offline W&B runs read back from their folders, by W&B's own reader of its record files."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from e3rl.analysis.sources.runs import Run, arm_and_seed
from e3rl.analysis.sources.wandb_run import TABLES, run_from_wandb, table_path

RECORDS = "run-*.wandb"
STARTED = re.compile(r"\d{8}_\d{6}")


def find_offline_files(root: str | Path) -> list[Path]:
    """Record files below a folder, oldest first (W&B puts the time into their folder's name)."""
    return sorted(Path(root).rglob(RECORDS), key=lambda path: (_started(path), path))


def _started(path: Path) -> str:
    """Date and time at which W&B began a record file; "" in a folder of another name."""
    found = STARTED.search(path.parent.name)
    return found[0] if found else ""


def load_offline_runs(source: str | Path | Iterable[str | Path]) -> list[Run]:
    """Every offline W&B run below the given folder or folders, by arm and seed.

    A resumed run has several record files with one id; rows of rollout steps that were trained
    again replace the earlier ones.

    Raises FileNotFoundError where there is none, ValueError for a file that W&B cannot read.
    """
    roots = [source] if isinstance(source, str | Path) else list(source)
    files = [file for root in roots for file in find_offline_files(root)]
    if not files:
        raise FileNotFoundError(f"no offline W&B run (a file {RECORDS}) in {source}")
    return sorted(map(load_offline_run, group_by_id(files).values()), key=arm_and_seed)


def group_by_id(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Record files by the id of their run; a resumed one has several."""
    parts: dict[str, list[Path]] = {}
    for file in files:
        parts.setdefault(file.stem.removeprefix("run-"), []).append(file)
    return parts


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a `.wandb` file, in order; a torn last one, left by a kill, is passed over.

    Raises ValueError naming the file and W&B's reason.
    """
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if not lines:
        raise ValueError(f"W&B cannot read {file}: {done.stderr.strip() or 'it holds no record'}")
    return [json.loads(line) for line in lines]


def load_offline_run(files: Sequence[Path]) -> Run:
    """The run of record files with one id, oldest first.

    Raises ValueError for a file that W&B cannot read, or a run that is not of e3rl.
    """
    config: dict[str, Any] = {}
    history: list[Mapping[str, Any]] = []
    tables: dict[str, list[pd.DataFrame]] = {}
    for file in files:
        for record in read_records(file):
            match record["type"]:
                case "run":
                    config |= record["run"].get("config", {}).get("update", {})
                case "config":
                    config |= record["config"].get("update", {})
                case "history":
                    item = record["history"]["item"]
                    history.append(item)
                    for name, table in _tables(item, file.parent / "files"):
                        tables.setdefault(name, []).append(table)
    config.pop("_wandb", None)
    return run_from_wandb(files[-1].parent, config, history, tables)


def _tables(item: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, pd.DataFrame]]:
    """The tables that a history row mentions, but for those whose file is gone."""
    for name in TABLES:
        path = table_path(item, name)
        if path is not None and (folder / path).is_file():
            yield name, pd.DataFrame(**json.loads((folder / path).read_text(encoding="utf-8")))

"""The names of a run folder's files, and its summary."""

import json
from pathlib import Path
from typing import Any

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
ENVIRONMENT = "environment.json"
PROMPTS, VALIDATION, SUMMARY = "prompts.jsonl", "validation.jsonl", "summary.json"
SECONDS = "seconds"  # of a run from the start of its process on, in its summary


def read_environment(run_dir: Path) -> dict[str, Any]:
    """What a run wrote of its code, machine and rewards; empty where it has not, or where a kill
    or an edit left something else."""
    try:
        found = json.loads((run_dir / ENVIRONMENT).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def recorded_code(run_dir: Path) -> dict[str, str] | None:
    """The digests of the files of the user's reward functions, by path, when a run began; None
    where the run does not tell."""
    found = read_environment(run_dir).get("reward_code")
    return found if isinstance(found, dict) else None


def read_summary(run_dir: Path) -> dict[str, Any] | None:
    """What a run wrote when it ended; None where it has not.

    Raises ValueError naming a file that holds something else.
    """
    path = run_dir / SUMMARY
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        found = f"({error})"
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged {found}: remove it, and the run counts as unfinished")
    return found

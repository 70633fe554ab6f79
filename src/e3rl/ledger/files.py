"""The names of a run folder's files, and its summary."""

import json
from pathlib import Path
from typing import Any

CONFIG, METRICS = "config.yaml", "metrics.jsonl"
ENVIRONMENT = "environment.json"
PROMPTS, VALIDATION, SUMMARY = "prompts.jsonl", "validation.jsonl", "summary.json"
SECONDS = "seconds"  # of a run from the start of its process on, in its summary


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

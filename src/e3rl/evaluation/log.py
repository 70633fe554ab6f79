"""`EvaluationLog`: what was sampled of a model on a problem set, and where a killed one goes on.

A folder holds two ledgers. `problems.jsonl` has the settings in its first row and then a row per
finished problem, with everything that tables are made from; `completions.jsonl` a row per rollout.
The completions of a problem are written before its row, which says how many there are then: those
that a kill left without a row are set aside and sampled again, from the same seeds.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from e3rl.config.differences import ABSENT, differences
from e3rl.ledger.ledger import Ledger, read_rows

PROBLEMS, COMPLETIONS = "problems.jsonl", "completions.jsonl"
Row = dict[str, Any]


class OtherSettingsError(ValueError):
    """A folder whose completions were sampled in another way than is asked for now."""


class EvaluationLog(AbstractContextManager["EvaluationLog"]):
    """The finished problems of an evaluation; opening an existing folder goes on with it.

    `settings` are all that decides what is sampled and how it is judged, in values that JSON has.
    A torn last line, of a process that was killed while writing, is passed over.

    Raises OtherSettingsError naming every setting that differs from those of the folder.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(settings))
        self.folder = folder
        check_settings(folder, wanted)
        self._problems = Ledger(folder / PROBLEMS)
        found = read_rows(folder / PROBLEMS)
        if not found:
            self._problems.append({"settings": wanted})
        self.rows: list[Row] = found[1:]  # of finished problems, in the order they were finished
        self._completions = Ledger(folder / COMPLETIONS)
        self._completions.rewind(self.rows[-1]["completions"] if self.rows else 0)

    @property
    def finished(self) -> set[str]:
        """Ids of the problems that need not be sampled any more."""
        return {row["problem_id"] for row in self.rows}

    def append(self, problem: Mapping[str, Any], completions: Sequence[Mapping[str, Any]]) -> None:
        """Write a finished problem, by `problem_id`, after all its completions."""
        for completion in completions:
            self._completions.append(completion)
        row = {**problem, "completions": self._completions.rows}
        self._problems.append(row)
        self.rows.append(row)

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the files; safe to call twice."""
        self._problems.close()
        self._completions.close()


def check_settings(folder: Path, settings: Mapping[str, Any]) -> None:
    """Raise OtherSettingsError, naming every difference, where a folder has a log with others.

    `settings` are as JSON gives them back.
    """
    found = read_rows(folder / PROBLEMS) if (folder / PROBLEMS).is_file() else []
    there = found[0].get("settings", {}) if found else settings
    if different := list(differences(there, settings)):
        listed = "\n".join(
            f"  - {path}: {None if old is ABSENT else old!r} there, {new!r} now"
            for path, old, new in different
        )
        raise OtherSettingsError(
            f"{folder} holds an evaluation with other settings:\n{listed}\n"
            "repeat them to go on with it, or choose another folder by out=..."
        )

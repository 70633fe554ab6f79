"""`EvaluationLog`: what was sampled of a model on a problem set, and where a killed one goes on.

A folder holds two ledgers. `problems.jsonl` has the settings in its first row and then a row per
finished problem, with everything that tables are made from; `completions.jsonl` a row per rollout.
The completions of a problem are written before its row, which says how many there are then: those
that a kill left without a row are set aside and sampled again, from the same seeds. One process
writes a log: it holds the lock file of the folder as long as it lives.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from e3rl.config.differences import ABSENT, differences
from e3rl.ledger.ledger import Ledger, read_rows

PROBLEMS, COMPLETIONS = "problems.jsonl", "completions.jsonl"
LOCK = ".lock"
Row = dict[str, Any]


class UnusableLogError(ValueError):
    """A folder whose evaluation this process cannot go on with."""


class OtherSettingsError(UnusableLogError):
    """A folder whose completions were sampled in another way than is asked for now."""


class EvaluationLog(AbstractContextManager["EvaluationLog"]):
    """The finished problems of an evaluation; opening an existing folder goes on with it.

    `settings` are all that decides what is sampled and how it is judged, in values that JSON has.
    A torn last line, of a process that was killed while writing, is passed over.

    Raises OtherSettingsError naming every setting that differs from those of the folder,
    UnusableLogError where another process writes into it, or where two have done so.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        wanted = json.loads(json.dumps(settings))
        self.folder = folder
        with ExitStack() as opened:
            opened.callback(claim_log(folder).release)
            check_settings(folder, wanted)
            self._problems = opened.enter_context(Ledger(folder / PROBLEMS))
            found = read_rows(folder / PROBLEMS)
            check_problems(folder, found[1:])
            if not found:
                self._problems.append({"settings": wanted})
            self.rows: list[Row] = found[1:]  # of finished problems, as they were finished
            self._completions = opened.enter_context(Ledger(folder / COMPLETIONS))
            self._completions.rewind(self.rows[-1]["completions"] if self.rows else 0)
            self._opened = opened.pop_all()

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
        self._opened.close()


def claim_log(folder: Path) -> FileLock:
    """The lock of a folder, taken; it ends with the process at latest.

    Raises UnusableLogError where another process has it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UnusableLogError(
            f"another process is writing an evaluation into {folder}: wait for its end, or choose "
            "another folder by out=..."
        ) from error
    return lock


def check_problems(folder: Path, rows: Sequence[Row]) -> None:
    """Raise UnusableLogError where a log has a problem twice, and would count it twice."""
    counts = Counter(row["problem_id"] for row in rows)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise UnusableLogError(
            f"{folder / PROBLEMS} has {len(repeated)} problems more than once, such as "
            f"{repeated[0]!r}, which two processes at once have left: move {folder} away, and the "
            "same command samples its problems again, or choose another folder by out=..."
        )


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

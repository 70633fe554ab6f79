"""Parts of an evaluation: problems shared out among processes that know nothing of each other.

Part i of n samples the problems i, n + i, 2n + i, ... of a set into a log of its own, below the
set's. Seeds belong to problems, so parts find what one process would. Whoever opens the set's log
next takes in what parts have left, however many there were, and samples what is still missing.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from e3rl.callbacks.validation_schedule import Evaluation
from e3rl.checkpoints.durable import write_atomically
from e3rl.config.composition import ConfigurationError
from e3rl.data.problem import Problem
from e3rl.evaluation.log import COMPLETIONS, PROBLEMS, EvaluationLog, check_settings
from e3rl.ledger.ledger import read_rows

PARTS, TEMPERATURES = "parts", "temperatures.json"
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Part `index` of `count`, from 1, of the evaluation whose log is in `folder`."""

    index: int
    count: int
    folder: Path

    @property
    def log(self) -> Path:
        """Where it is written."""
        return self.folder / PARTS / f"{self.index}-of-{self.count}"

    def own(self, problems: Sequence[Problem]) -> Sequence[Problem]:
        """Its problems."""
        return problems[self.index - 1 :: self.count]

    def rows(self) -> list[Row]:
        """Of the problems that are finished by now, in the evaluation's log or that of a part."""
        logs = [path / PROBLEMS for path in self.folders()]
        return [row for path in logs if path.is_file() for row in read_rows(path)[1:]]

    def folders(self) -> list[Path]:
        """That of the evaluation, and those of all parts that have begun."""
        return [self.folder, *(path.parent for path in (self.folder / PARTS).glob(f"*/{PROBLEMS}"))]

    def share_temperatures(
        self,
        evaluations: Sequence[Evaluation],
        find: Callable[[Sequence[Evaluation]], Sequence[Evaluation]],
    ) -> list[Evaluation]:
        """`find(evaluations)`, which the first part to come here does for all: the others wait.

        Evaluations that ask for no entropy have their temperatures already.
        """
        if all(each.entropy is None for each in evaluations):
            return list(evaluations)
        place = self.folder / PARTS / TEMPERATURES
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(place.with_suffix(".lock")):
            if not place.is_file():
                found = {each.name: each.temperature for each in find(evaluations)}
                write_atomically(place, json.dumps(found))
            known = json.loads(place.read_text(encoding="utf-8"))
        return [replace(each, entropy=None, temperature=known[each.name]) for each in evaluations]


def parse_part(text: str) -> tuple[int, int]:
    """The 2 and the 8 of `part=2/8`.

    Raises ConfigurationError for anything else than i/n with 1 <= i <= n.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigurationError(
            f"part={text}: write 1/8 for the first of eight parts, up to 8/8 for the last"
        )
    return int(found[1]), int(found[2])


def open_log(
    folder: Path,
    settings: Mapping[str, Any],
    problems: Iterable[Problem],
    part: Part | None = None,
) -> EvaluationLog:
    """The log of a part; without one that of the evaluation, with what its parts have left, in the
    order of the problems.

    Raises UnusableLogError as `EvaluationLog` does, for all that is there of the evaluation.
    """
    if part is not None:
        for each in part.folders():
            check_settings(each, json.loads(json.dumps(settings)))
        return EvaluationLog(part.log, settings)
    with ExitStack() as opened:
        log = opened.enter_context(EvaluationLog(folder, settings))
        take_in_parts(log, settings, problems)
        opened.pop_all()
    return log


def take_in_parts(
    log: EvaluationLog, settings: Mapping[str, Any], problems: Iterable[Problem]
) -> None:
    """Append what the parts of an evaluation have left to its log, and remove theirs.

    All of them are held until then, so that none begins to write into what is removed.
    """
    with ExitStack() as opened:
        found: dict[str, tuple[Row, list[Row]]] = {}
        for path in sorted((log.folder / PARTS).glob(f"*/{PROBLEMS}")):
            found |= finished_problems(opened.enter_context(EvaluationLog(path.parent, settings)))
        for name in log.finished:
            found.pop(name, None)
        for problem in problems:
            if problem.id in found:
                log.append(*found[problem.id])
        shutil.rmtree(log.folder / PARTS, ignore_errors=True)


def finished_problems(log: EvaluationLog) -> dict[str, tuple[Row, list[Row]]]:
    """The row and the completions of each problem of a log, by id."""
    completions, start, found = read_rows(log.folder / COMPLETIONS), 0, {}
    for row in log.rows:
        found[row["problem_id"]] = row, completions[start : row["completions"]]
        start = row["completions"]
    return found

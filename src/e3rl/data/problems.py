"""Problem sets from jsonl, json and parquet files, with every unusable row reported at once."""

import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, overload

from e3rl.data.bad_rows import BadRow, Fault, OnBadRow, raise_or_drop_bad_rows
from e3rl.data.hub import local_file
from e3rl.data.problem import Problem
from e3rl.data.problem_fields import (
    parse_answer,
    parse_id,
    parse_level,
    parse_prior,
    parse_prompt,
    parse_source,
)
from e3rl.data.questions import (
    find_superfluous,
    group_by_question,
    have_same_answer,
    strip_wrapping,
)
from e3rl.data.rows import Record, Rows, lookup, read_rows

Repeats = Literal["keep", "drop"]
UNSELECTED = "not selected"  # rows that `where` leaves out
BEYOND = "beyond size"  # usable problems that `size` leaves out


@dataclass(frozen=True)
class Columns:
    """Which column of a file holds which field; `a.b` is the entry b of a struct column a,
    `a.0` the first of a list.

    `prompt` and `answer` must exist. The others are optional under their default names, must
    exist under any other name, and are not read where None.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    id: str | None = "id"
    source: str | None = "source"
    level: str | None = "level"
    prior: str | None = "prior"


PLAIN_COLUMNS = Columns()  # also those of E3's test set
E3_COLUMNS = Columns(answer="reward_model.ground_truth", source="data_source", prior="rank")


@dataclass(frozen=True)
class ProblemSet(Sequence[Problem]):
    """Problems with where they came from and what was left out on the way."""

    problems: tuple[Problem, ...]
    origin: str  # the file, for messages
    rows: tuple[int, ...]  # row of each problem in its file, counting from 0
    dropped: Mapping[str, int] = field(default_factory=dict)  # rows left out, by reason

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.problems):
            raise ValueError(f"{len(self.rows)} row numbers for {len(self.problems)} problems")
        repeated = [key for key, n in Counter(p.id for p in self.problems).items() if n > 1]
        if repeated:
            raise ValueError(
                f"{self.origin}: {len(repeated)} ids occur more than once, e.g. {repeated[0]!r}; "
                "every per-prompt statistic is kept by id, so make them unique"
            )

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Problem, ...]: ...
    def __getitem__(self, index: int | slice) -> Problem | tuple[Problem, ...]:
        return self.problems[index]

    def __len__(self) -> int:
        return len(self.problems)

    def without(self, reasons: Mapping[int, str]) -> "ProblemSet":
        """The set less the rows that are named, which count as dropped for the given reason."""
        kept = [i for i, row in enumerate(self.rows) if row not in reasons]
        return ProblemSet(
            tuple(self.problems[i] for i in kept),
            self.origin,
            tuple(self.rows[i] for i in kept),
            dict(Counter(self.dropped) + Counter(reasons.values())),
        )

    @staticmethod
    def of(problems: Sequence[Problem], origin: str) -> "ProblemSet":
        """`problems` as they are where they form a set already, else with their places as rows."""
        if isinstance(problems, ProblemSet):
            return problems
        return ProblemSet(tuple(problems), origin, tuple(range(len(problems))))


def load_problems(
    path: str | Path,
    columns: Columns = PLAIN_COLUMNS,
    on_bad_row: OnBadRow = "raise",
    name: str | None = None,
    where: Mapping[str, object] | None = None,
    strip: Sequence[str] = (),
    repeats: Repeats = "keep",
    limit: int | None = None,
    answer_after: str | None = None,
    size: int | None = None,
) -> ProblemSet:
    """Problems of a `.jsonl`, `.json` or `.parquet` file, in file order; a row without an id gets
    `<name>:<row>`, one without a source `<name>`.

    Args:
        path: the file, or `hf://datasets/OWNER/NAME[@REVISION]/FILE` on the hub.
        columns, name: where the file keeps what, and what to call it; its stem if None.
        on_bad_row: `skip` drops and counts bad rows.
        where: column -> the value, or list of values, that chosen rows have there.
        strip: fixed texts before or behind every question, which are removed.
        repeats: `keep` warns of repeated questions, `drop` drops them, and disputed ones wholly.
        limit, size: rows to read, usable problems to keep, the first ones; None for all.
        answer_after: mark before the gold answer in its column, `####` in GSM8K; None without one.

    Raises FileNotFoundError; ValueError for a file that cannot be read, lacks a named column or has
    no usable problem, for a `size` below 1, and BadRowsError, one too, that lists all bad rows.
    """
    _check_choices(repeats, size)
    file = local_file(path)
    everything = read_rows(file, limit)
    _check_columns(path, [r for r in everything.values() if not isinstance(r, Fault)], columns)
    rows = _selected(path, everything, where or {})
    problems, bad = _parse_rows(rows, columns, name or file.stem, answer_after)
    problems = strip_wrapping(problems, strip)
    bad += _take_blank(problems)
    dropped = raise_or_drop_bad_rows(str(path), bad, len(rows), on_bad_row)
    _require_some(path, problems, rows, dropped)
    if unselected := len(everything) - len(rows):
        dropped[UNSELECTED] = unselected
    found = ProblemSet(tuple(problems.values()), str(path), tuple(problems), dropped)
    found = _first(_without_repeats(found) if repeats == "drop" else found, size)
    if repeats == "keep":
        _warn_of_repeats(path, found)
    return found


def _check_choices(repeats: str, size: int | None) -> None:
    """Raise ValueError for what `load_problems` does not offer."""
    if repeats not in get_args(Repeats):
        raise ValueError(f"repeats is {repeats!r}: choose 'keep' or 'drop'")
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: give the number of problems to keep, or null for all")


def _require_some(
    path: str | Path, problems: Mapping[int, Problem], rows: Rows, dropped: Mapping[str, int]
) -> None:
    """Raise ValueError where a file has no usable problem."""
    if not problems:
        raise ValueError(f"{path} holds no usable problem ({len(rows)} rows, dropped: {dropped})")


def _take_blank(problems: dict[int, Problem]) -> list[BadRow]:
    """Take out the problems of which `strip` left nothing, and say so of their rows."""
    nothing = "nothing is left of it without what `strip` takes away"
    fault = Fault("missing prompt", nothing, "give the question")
    blank = [row for row, problem in problems.items() if _is_blank(problem)]
    for row in blank:
        del problems[row]
    return [BadRow(row, (fault,)) for row in blank]


def _first(found: ProblemSet, size: int | None) -> ProblemSet:
    """At most `size` problems; the others count as dropped."""
    return found if size is None else found.without(dict.fromkeys(found.rows[size:], BEYOND))


def _is_blank(problem: Problem) -> bool:
    """Whether it asks nothing, in its text or its last message."""
    prompt = problem.prompt
    return not (prompt if isinstance(prompt, str) else prompt[-1]["content"]).strip()


def _without_repeats(found: ProblemSet) -> ProblemSet:
    reasons = find_superfluous(found)
    if len(reasons) == len(found):  # the first problem of a question stays unless it is disputed
        raise ValueError(
            f"{found.origin}: repeats=drop leaves none of {len(found)} problems, since every "
            "question has several answers: correct them, or set repeats=keep"
        )
    rows = zip(found.rows, found, strict=True)
    return found.without({row: reasons[p.id] for row, p in rows if p.id in reasons})


def _selected(path: str | Path, rows: Rows, where: Mapping[str, object]) -> Rows:
    """The rows that have one of the given values in every given column, and unreadable ones."""
    for column, wanted in where.items():
        allowed = wanted if isinstance(wanted, list | tuple) else [wanted]
        values = {r: lookup(row, column) for r, row in rows.items() if not isinstance(row, Fault)}
        chosen = {r for r, value in values.items() if value in allowed}
        if values and not chosen:
            present = sorted({repr(value) for value in values.values()})
            raise ValueError(
                f"{path}: no row has {column}={wanted!r}; where.{column} may be "
                + ", ".join(present[:20])
            )
        rows = {r: row for r, row in rows.items() if r in chosen or isinstance(row, Fault)}
    return rows


def _check_columns(path: str | Path, records: Sequence[Record], columns: Columns) -> None:
    """Tell a misnamed column apart from rows that lack a value."""
    for item in fields(columns):
        column = getattr(columns, item.name)
        optional = item.name not in ("prompt", "answer") and column in (None, item.default)
        if records and not optional and all(lookup(r, column) is None for r in records):
            present = ", ".join(sorted({key for record in records for key in record}))
            raise ValueError(
                f"{path}: no row has a value in column '{column}'; set columns.{item.name} to "
                f"one of: {present}"
            )


def _parse_rows(
    rows: Rows, columns: Columns, name: str, answer_after: str | None
) -> tuple[dict[int, Problem], list[BadRow]]:
    """Usable problems by row number, and the rest."""
    problems: dict[int, Problem] = {}
    bad: list[BadRow] = []
    owners: dict[str, int] = {}  # problem id -> the row that has it
    for row, record in rows.items():
        if isinstance(record, Fault):
            bad.append(BadRow(row, (record,)))
            continue
        parsed = _parse_row(record, row, columns, name, owners, answer_after)
        if isinstance(parsed, Problem):
            problems[row] = parsed
        else:
            bad.append(BadRow(row, parsed))
    return problems, bad


def _parse_row(
    record: Record,
    row: int,
    columns: Columns,
    name: str,
    owners: dict[str, int],
    answer_after: str | None,
) -> Problem | tuple[Fault, ...]:
    """The problem in a row, which enters its id in `owners`, or all that is wrong with it."""
    prompt = parse_prompt(lookup(record, columns.prompt), columns.prompt)
    answer = parse_answer(lookup(record, columns.answer), columns.answer, answer_after)
    key = parse_id(lookup(record, columns.id), columns.id, default=f"{name}:{row}")
    source = parse_source(lookup(record, columns.source), columns.source, default=name)
    level = parse_level(lookup(record, columns.level), columns.level)
    prior = parse_prior(lookup(record, columns.prior), columns.prior)
    if isinstance(key, str) and key in owners:
        key = Fault(
            "duplicate id",
            f"{key!r} is the id of row {owners[key]} already",
            "make ids unique, or set columns.id=null to number the rows",
        )
    if (
        isinstance(prompt, Fault)
        or isinstance(answer, Fault)
        or isinstance(key, Fault)
        or isinstance(source, Fault)
        or isinstance(level, Fault)
        or isinstance(prior, Fault)
    ):
        found = (prompt, answer, key, source, level, prior)
        return tuple(f for f in found if isinstance(f, Fault))
    owners[key] = row
    return Problem(key, prompt, answer, source, level, prior, _other_columns(record, columns))


def _other_columns(record: Record, columns: Columns) -> dict[str, Any]:
    """What a row holds besides the fields of a problem, in values that JSON has; others as text."""
    used = {getattr(columns, item.name) for item in fields(columns)}
    others = {key: value for key, value in record.items() if key not in used}
    found: dict[str, Any] = json.loads(json.dumps(others, default=str)) if others else {}
    return found


def _warn_of_repeats(path: str | Path, problems: Sequence[Problem]) -> None:
    groups = [group for group in group_by_question(problems).values() if len(group) > 1]
    if groups:
        repeats = [problem for group in groups for problem in group[1:]]
        contradicted = sum(not have_same_answer(group) for group in groups)
        named = ", ".join(p.id for p in repeats[:5])
        warnings.warn(
            f"{path}: {len(repeats)} problems repeat the question of an earlier one: {named}"
            f"{', ...' if len(repeats) > 5 else ''}; {contradicted} questions have several "
            "answers; repeats=drop leaves them out",
            stacklevel=3,
        )

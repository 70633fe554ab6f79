"""Problem sets from jsonl and parquet files, with every unusable row reported at once."""

import codecs
import json
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import overload

import pyarrow
import pyarrow.parquet

from e3rl.data.bad_rows import BadRow, Fault, OnBadRow, settle
from e3rl.data.problem import Problem
from e3rl.data.problem_fields import (
    parse_answer,
    parse_id,
    parse_level,
    parse_prior,
    parse_prompt,
    parse_source,
)

Record = Mapping[str, object]


@dataclass(frozen=True)
class Columns:
    """Which column of a file holds which field; `a.b` is the entry b of a struct column a.

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
) -> ProblemSet:
    """Problems of a `.jsonl` or `.parquet` file, in file order.

    A row without an id gets `<name>:<row>`, a row without a source gets `<name>`; `name` is the
    file's stem unless given. A prompt that occurs again is kept, counted and warned about.

    Raises FileNotFoundError; ValueError for a file that cannot be read, lacks a named column or
    holds no usable problem; BadRowsError (a ValueError) listing all bad rows, unless these are
    to be skipped.
    """
    path = Path(path)
    rows = _read(path)
    _check_columns(path, [r for r in rows.values() if not isinstance(r, Fault)], columns)
    problems, bad = _parse_rows(rows, columns, name or path.stem)
    dropped = settle(str(path), bad, len(rows), on_bad_row)
    if not problems:
        raise ValueError(f"{path} holds no usable problem ({len(rows)} rows, dropped: {dropped})")
    _warn_of_repeats(path, list(problems.values()))
    return ProblemSet(tuple(problems.values()), str(path), tuple(problems), dropped)


def question_text(problem: Problem) -> str:
    """What is asked, whatever its form: without system messages, blanks collapsed."""
    if isinstance(problem.prompt, str):
        return " ".join(problem.prompt.split())
    asked = [m["content"] for m in problem.prompt if m["role"] not in ("system", "developer")]
    return " ".join(" ".join(asked).split())


def _read(path: Path) -> dict[int, Record | Fault]:
    """Row number -> row, or why the row cannot be read."""
    if not path.is_file():
        raise FileNotFoundError(
            f"problem file {path.absolute()} does not exist: correct the path, or give an "
            "absolute one"
        )
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: unknown kind of file {path.suffix!r}, convert it to one of: "
            + ", ".join(readers)
        )
    return readers[path.suffix](path)


def _read_jsonl(path: Path) -> dict[int, Record | Fault]:
    # Bytes are split at the newline alone: str.splitlines would also cut at U+2028 inside a text.
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    return {row: _read_line(line) for row, line in enumerate(lines) if line.strip()}


def _read_line(line: bytes) -> Record | Fault:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Fault("not UTF-8", str(error), "save the file as UTF-8")
    try:
        record = json.loads(text)
    # ValueError: broken syntax, or an integer beyond Python's limit of digits.
    except (ValueError, RecursionError) as error:
        return Fault("broken JSON", str(error), "write one complete JSON object per line")
    if not isinstance(record, dict):
        kind = type(record).__name__
        return Fault("wrong type", f"the line is a {kind}", "write one JSON object per line")
    return record


def _read_parquet(path: Path) -> dict[int, Record | Fault]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file, write it again: {error}") from (
            error
        )
    try:
        return dict(enumerate(table.to_pylist()))
    except UnicodeDecodeError:
        return {row: _read_slice(table.slice(row, 1)) for row in range(table.num_rows)}


def _read_slice(table: "pyarrow.Table") -> Record | Fault:
    try:
        record: Record = table.to_pylist()[0]
    except UnicodeDecodeError as error:
        return Fault("not UTF-8", str(error), "write the text column as UTF-8")
    return record


def _check_columns(path: Path, records: Sequence[Record], columns: Columns) -> None:
    """Tell a misnamed column apart from rows that lack a value."""
    for item in fields(columns):
        column = getattr(columns, item.name)
        optional = item.name not in ("prompt", "answer") and column in (None, item.default)
        if records and not optional and all(_lookup(r, column) is None for r in records):
            present = ", ".join(sorted({key for record in records for key in record}))
            raise ValueError(
                f"{path}: no row has a value in column '{column}'; set columns.{item.name} to "
                f"one of: {present}"
            )


def _lookup(record: Record, column: str | None) -> object:
    if column is None or column in record:
        return None if column is None else record[column]
    value: object = record
    for key in column.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _parse_rows(
    rows: Mapping[int, Record | Fault], columns: Columns, name: str
) -> tuple[dict[int, Problem], list[BadRow]]:
    """Usable problems by row number, and the rest."""
    problems: dict[int, Problem] = {}
    bad: list[BadRow] = []
    owners: dict[str, int] = {}  # problem id -> the row that has it
    for row, record in rows.items():
        if isinstance(record, Fault):
            bad.append(BadRow(row, (record,)))
            continue
        parsed = _parse_row(record, row, columns, name, owners)
        if isinstance(parsed, Problem):
            problems[row] = parsed
        else:
            bad.append(BadRow(row, parsed))
    return problems, bad


def _parse_row(
    record: Record, row: int, columns: Columns, name: str, owners: dict[str, int]
) -> Problem | tuple[Fault, ...]:
    """The problem in a row, or everything that is wrong with it; enters its id in `owners`."""
    prompt = parse_prompt(_lookup(record, columns.prompt), columns.prompt)
    answer = parse_answer(_lookup(record, columns.answer), columns.answer)
    key = parse_id(_lookup(record, columns.id), columns.id, default=f"{name}:{row}")
    source = parse_source(_lookup(record, columns.source), columns.source, default=name)
    level = parse_level(_lookup(record, columns.level), columns.level)
    prior = parse_prior(_lookup(record, columns.prior), columns.prior)
    if isinstance(key, str) and owners.setdefault(key, row) != row:
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
    return Problem(key, prompt, answer, source, level, prior)


def _warn_of_repeats(path: Path, problems: Sequence[Problem]) -> None:
    first: dict[str, Problem] = {}
    repeats = [p for p in problems if first.setdefault(question_text(p), p) is not p]
    if repeats:
        other = sum(p.answer != first[question_text(p)].answer for p in repeats)
        named = ", ".join(p.id for p in repeats[:5])
        warnings.warn(
            f"{path}: {len(repeats)} problems repeat the prompt of an earlier one, {other} of "
            f"them with another answer: {named}{', ...' if len(repeats) > 5 else ''}",
            stacklevel=3,
        )
